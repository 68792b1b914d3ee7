"""What the service asks of an engine: start a generation, and hand over its deltas as they are made.

Deltas are pushed, not pulled. An engine produces the tokens of all its requests in one loop; a
generation that calls its sink from that loop costs one function call per delta, where a queue and
a task per request would cost a wake-up for every token of every stream.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from service.engine.lora import Adapter
from service.engine.sampling import Sampling
from service.errors import ServiceError, StartError

Finish = Literal["stop", "length", "abort", "tool_calls"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of a running engine and its model."""

    context_window: int  # tokens, prompt and output together
    vocab_size: int  # width of the logits; may exceed the tokenizer's own size
    kv_capacity_tokens: int
    block_size: int  # tokens
    version: str
    max_running: int = 256  # answers the engine works on at once
    reuses_prefixes: bool = True  # in whole blocks
    model_config: Mapping[str, Any] = field(default_factory=dict)  # the text model's, as transformers has it
    kv_dtype: str = "auto"  # of the KV cache, as it is really kept
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  # what the model's makers advise
    reasons: bool = False  # it is known how the model writes what it thinks before it answers
    bounds_thinking: bool = False  # it can be made to stop thinking after some tokens
    reasons_in_special_tokens: bool = False  # which therefore have to be in its text
    tool_parser: str | None = None  # how the model writes tool calls of its own accord, if that is known
    max_adapters: int = 0  # LoRA adapters it can have at once


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine has to do, as of its last step."""

    running: int = 0  # generations
    waiting: int = 0  # generations
    kv_used_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text of an answer has to be like. `spec` is JSON for a schema, choice or structural tag."""

    kind: Literal["json", "regex", "choice", "grammar", "structural_tag"]
    spec: str
    field: str  # the caller's name for it


@dataclass(frozen=True, slots=True)
class Work:
    """One request as the engine sees it. `id` is made by the service, never by a client."""

    id: str
    token_ids: list[int]
    sampling: Sampling
    max_output_tokens: int
    n: int = 1
    _: KW_ONLY
    priority: int = 0  # lower goes first, where the engine knows priorities
    cache_salt: str | None = None  # only prompts under the same salt share cached prefixes
    stream: bool = True  # False: only the first token and the end of each choice are handed over
    constraint: Constraint | None = None  # one that the engine's `check_constraint` has let pass
    adapter: Adapter | None = None  # one that is loaded, and stays so until the generation ends


@dataclass(frozen=True, slots=True)
class EngineClock:
    """When the engine did what for one choice: seconds on its monotonic clock, 0.0 for never."""

    queued_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    cached_tokens: int
    preemptions: int


class TokenLogprob(NamedTuple):
    """How likely a token was, and what was likeliest in its place; natural logarithms, always finite."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()  # token id and logprob, the likeliest first
    spelled: bytes = b""  # what the token put into the text; known once that text is there


@dataclass(slots=True)
class CallDelta:
    """What one tool call gained: first its id and name, then its arguments, JSON text, piece by piece."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """What one choice gained. `text` may be empty while a character or a stop string is incomplete."""

    index: int
    text: str
    token_ids: Sequence[int]
    finish: Finish | None = None
    clock: EngineClock | None = None  # with the first and last delta of a choice, and after a preemption
    calls: Sequence[CallDelta] = ()  # what a `CallReader` has found in the text
    logprobs: Sequence[TokenLogprob] = ()  # one for each token, where they were asked for
    reasoning: str = ""  # what a `Thinking` has found in the text
    reasoning_tokens: int = 0
    reasoning_logprobs: Sequence[TokenLogprob] = ()
    stopped_by: str | None = None  # the stop string that ended it, with the last delta


class Sink(Protocol):
    """Receives the deltas of one generation, called from the engine's own loop: it must be quick."""

    def put(self, delta: Delta) -> None:
        """Take the next delta."""

    def fail(self, error: ServiceError) -> None:
        """The generation has failed; nothing follows."""


class Thinking(Protocol):
    """Tells what one choice thinks from what it answers, token by token."""

    ended: bool  # whatever follows is answer

    @property
    def thinks(self) -> bool:
        """Whether what has no text of its own now is a part of the thinking."""

    def read(self, text: str, token_id: int) -> tuple[str, str]:
        """Thought and answer that are now known, given the next token and its text."""

    def finish(self) -> tuple[str, str]:
        """Thought and answer that were held back, when nothing follows."""


class CallReader(Protocol):
    """Finds tool calls in the text of one choice, delta by delta."""

    def read(self, delta: Delta) -> None:
        """Move what belongs to calls from the delta's text to its calls."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How an answer is made and read: a reader of calls for each choice, and what goes to the engine."""

    readers: Sequence[CallReader]
    constraint: Constraint | None = None
    skip_special_tokens: bool = True


def new_call_id() -> str:
    """The id of a call. Its caller sends it back with what the tool has found."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Generation(ABC):
    """A running generation. It keeps what is made before anyone listens, then hands over directly."""

    def __init__(self) -> None:
        self._early: list[Delta | ServiceError] = []
        self._sink: Sink | None = None
        self._deliver: Callable[[Delta], None] = self._early.append  # for each delta

    def listen(self, sink: Sink) -> None:
        """Hand what there is, and from now on each delta as it is made, to `sink`."""
        self._sink = sink
        self._deliver = sink.put
        early, self._early = self._early, []
        for item in early:
            if isinstance(item, Delta):
                sink.put(item)
            else:
                sink.fail(item)

    @abstractmethod
    def abort(self) -> None:
        """End the generation in the engine. Returns at once; harmless when it has already ended."""

    def _deliver_failure(self, error: ServiceError) -> None:
        if self._sink is None:
            self._early.append(error)
        else:
            self._sink.fail(error)


class Engine(Protocol):
    """One engine with one model."""

    @property
    def facts(self) -> EngineFacts:
        """Known once `start` has returned."""

    @property
    def load(self) -> EngineLoad:
        """What the engine has to do just now."""

    @property
    def steps(self) -> int:
        """Rises whenever the engine's process is heard of."""

    async def ping(self) -> None:
        """Ask the engine's process; returns, and `steps` has risen, when it has answered.

        Raises:
            EngineUnavailable: it has died.
        """

    async def start(self) -> None:
        """Load the model and generate once, so that no caller is the warm-up.

        Raises:
            EngineStartError: in words an operator can act on.
        """

    async def check_constraint(self, constraint: Constraint, tenant: str) -> None:
        """Find out whether the engine can hold an answer to this; known ones are let pass at once.

        What one `tenant` has tried takes its turn among those of others.

        Raises:
            InvalidValue: it cannot, naming the caller's field.
            Overloaded, EngineUnavailable: nobody can say now.
        """

    def plan_calls(
        self, tools: Sequence[Mapping[str, Any]], n: int, *, parallel: bool, stream: bool
    ) -> CallPlan:
        """How to read the calls that this model makes of its own accord; without `parallel`, at most one.

        Only for an engine whose facts name a tool parser.
        """

    def thinkings(
        self, token_ids: Sequence[int], n: int, template_kwargs: Mapping[str, Any]
    ) -> Sequence[Thinking]:
        """How to read the thinking in each of n answers; none where there will be none to read.

        `template_kwargs` are what the prompt was rendered with.
        """

    async def load_adapter(self, adapter: Adapter) -> None:
        """Read an adapter, so that generations can use it. At most `max_adapters` are in the engine.

        Raises:
            InvalidValue: it cannot be used; the engine goes on without it.
            EngineUnavailable: the engine has died.
        """

    async def unload_adapter(self, adapter: Adapter) -> None:
        """Forget an adapter that no generation uses.

        Raises:
            ServiceError: it could not be done.
        """

    async def generate(self, work: Work) -> Generation:
        """Hand a request to the engine. Everything the engine can object to is raised here.

        Raises:
            CallerError: the engine does not accept the request.
            EngineUnavailable: the engine has died.
        """

    def cancel_start(self) -> None:
        """Make a start that is under way fail soon, leaving no process behind."""

    def check(self) -> None:
        """Raises EngineUnavailable when the engine is known to be dead."""

    async def aclose(self) -> None:
        """End what runs and leave no process behind."""


class EngineStartError(StartError):
    """The engine did not start."""
