"""`VllmEngine`: start, generate, close."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestState
from xgrammar import TokenizerInfo

from service.engine.grammar import Limits, Workshop
from service.engine.lora import Adapter
from service.engine.protocol import (
    CallPlan,
    Constraint,
    Delta,
    EngineFacts,
    EngineLoad,
    EngineStartError,
    Generation,
    Sink,
    Thinking,
    Work,
)
from service.engine.sampling import Sampling
from service.engine.vllm import adapters as lora
from service.engine.vllm.arguments import engine_args, facts_of, start_failure
from service.engine.vllm.generation import VllmGeneration
from service.engine.vllm.grammars import Grammars
from service.engine.vllm.load import LoadKeeper
from service.engine.vllm.outputs import read_directly
from service.engine.vllm.params import sampling_params
from service.engine.vllm.reasoning import ReasoningParser, check_reasoning_parser
from service.engine.vllm.tool_parser import ToolParser
from service.engine.vllm.translate import translate
from service.errors import EngineUnavailable, ServiceError

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 4


class VllmEngine:
    """One AsyncLLM. `args` are vLLM's engine arguments; the rest of the configuration is its own."""

    def __init__(
        self,
        model: str,
        args: Mapping[str, Any],
        max_model_len: int | None = None,
        *,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        adapters: int = 0,
        trial: Limits | None = None,
    ) -> None:
        if (
            reasoning_parser is not None
        ):  # the engine itself uses it to bound thinking, and to hold back grammars
            check_reasoning_parser(reasoning_parser)
            args = {"reasoning_parser": reasoning_parser, **args}
        self._args = engine_args(model, args, max_model_len, adapters)
        self._reasoning_parser_name = reasoning_parser
        self._reasoning_parser: ReasoningParser | None = None
        self._tool_parser_name = tool_parser
        self._tool_parser: ToolParser | None = None
        self._loaded = asyncio.Event()
        self._workshop = Workshop(self._tokens, trial or Limits())
        self._grammars = Grammars(self._workshop)
        self._llm: AsyncLLM | None = None
        self._facts: EngineFacts | None = None
        self._load = LoadKeeper()
        self._pings = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def facts(self) -> EngineFacts:
        if self._facts is None:
            raise EngineUnavailable("The engine is not running.")
        return self._facts

    @property
    def load(self) -> EngineLoad:
        return self._load.load(self.facts.kv_capacity_tokens)

    @property
    def steps(self) -> int:
        return self._load.steps + self._pings

    async def ping(self) -> None:
        self.check()
        assert self._llm is not None
        try:
            await self._llm.is_sleeping()  # the cheapest question its process answers
        except Exception as exc:
            raise translate(exc) from exc
        self._pings += 1

    async def start(self) -> None:
        opening = asyncio.create_task(self._workshop.open())
        try:
            await self._start(opening)
        except BaseException:
            opening.cancel()
            await asyncio.wait({opening})
            await self._workshop.aclose()
            raise

    async def _start(self, opening: asyncio.Task[None]) -> None:
        try:
            llm = await asyncio.to_thread(
                AsyncLLM.from_engine_args,
                self._args,
                usage_context=UsageContext.OPENAI_API_SERVER,
                stat_loggers=[self._load],
            )
            read_directly(llm)
            self._llm = llm
            if self._reasoning_parser_name is not None:
                self._reasoning_parser = ReasoningParser(self._reasoning_parser_name, llm.get_tokenizer())
            self._facts = facts_of(llm, self._tool_parser_name, self._reasoning_parser)
            if self._tool_parser_name is not None:
                self._tool_parser = ToolParser(self._tool_parser_name, llm.get_tokenizer())
            # To check grammars vLLM would compile them on the event loop; `check_constraint` does better.
            llm.input_processor.structured_outputs_config = None
            self._loaded.set()
            await self._warm_up()
            await opening
            # The model's objects stay for good: the collector, which would halt the event loop for a
            # fifth of a second to walk them, need not look at them again.
            gc.collect()
            gc.freeze()
        except ServiceError as exc:
            raise EngineStartError(f"the engine started but could not generate: {exc.message}") from exc
        except Exception as exc:
            raise EngineStartError(start_failure(exc)) from exc

    async def check_constraint(self, constraint: Constraint, tenant: str) -> None:
        await self._grammars.check(constraint, tenant)

    def plan_calls(
        self, tools: Sequence[Mapping[str, Any]], n: int, *, parallel: bool, stream: bool
    ) -> CallPlan:
        assert self._tool_parser is not None
        return self._tool_parser.plan(tools, n, parallel=parallel, stream=stream)

    def thinkings(
        self, token_ids: Sequence[int], n: int, template_kwargs: Mapping[str, Any]
    ) -> Sequence[Thinking]:
        if self._reasoning_parser is None:
            return ()
        return self._reasoning_parser.thinkings(token_ids, n, template_kwargs)

    async def load_adapter(self, adapter: Adapter) -> None:
        self.check()
        assert self._llm is not None
        await lora.load(self._llm, adapter)

    async def unload_adapter(self, adapter: Adapter) -> None:
        self.check()
        assert self._llm is not None
        await lora.unload(self._llm, adapter)

    async def generate(self, work: Work) -> Generation:
        self.check()
        assert self._llm is not None
        params = sampling_params(work)
        try:
            collector = await self._llm.add_request(
                work.id,
                tokens_input(work.token_ids, cache_salt=work.cache_salt),
                params,
                lora_request=None if work.adapter is None else lora.lora_request(work.adapter),
                priority=work.priority,
            )
        except Exception as exc:
            raise translate(exc) from exc
        except asyncio.CancelledError:
            self._abort(work.id, internal=False)
            raise
        return VllmGeneration(collector, self._abort, self._plain_state(collector.request_id, params))

    def _plain_state(self, request_id: str, params: SamplingParams) -> RequestState | None:
        """vLLM's state of a request whose steps bring text and nothing else, while it runs."""
        if params.n > 1 or params.logprobs is not None or params.stream_interval is not None:
            return None
        assert self._llm is not None
        state = self._llm.output_processor.request_states.get(request_id)
        return None if state is None or state.stats is None else state

    def cancel_start(self) -> None:
        # The start waits in a thread for processes it has made; without them it gives up.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def check(self) -> None:
        if self._llm is None or self._llm.errored:
            raise EngineUnavailable("The engine is not running; try again later.")

    async def aclose(self) -> None:
        await self._workshop.aclose()
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        await asyncio.to_thread(llm.shutdown)

    async def _warm_up(self) -> None:
        prompt = list(range(1, min(17, self.facts.vocab_size, self.facts.context_window - WARM_UP_TOKENS)))
        # Logprobs are asked for since the engine compiles their kernel at the first wish for them, and as
        # long as that takes nobody gets a token.
        sampling = Sampling(temperature=0.0, ignore_eos=True, top_logprobs=1)
        done = _Done()
        generation = await self.generate(Work("warm-up", prompt, sampling, WARM_UP_TOKENS))
        generation.listen(done)
        await done.wait()

    async def _tokens(self) -> str:
        """The model's tokens as xgrammar writes them, once the model is there."""
        await self._loaded.wait()
        assert self._llm is not None
        tokenizer, vocab_size = self._llm.get_tokenizer(), self.facts.vocab_size
        return await asyncio.to_thread(
            lambda: str(TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size).serialize_json())
        )

    def _abort(self, request_id: str, *, internal: bool = True) -> None:
        if self._llm is not None:
            task = asyncio.ensure_future(self._llm.abort(request_id, internal=internal))
            self._tasks.add(task)
            task.add_done_callback(self._aborted)

    def _aborted(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a request could not be ended in the engine", exc_info=fault)


class _Done(Sink):
    """Waits for the end of a generation."""

    def __init__(self) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, delta: Delta) -> None:
        if delta.finish is not None:
            self._end.set_result(None)

    def fail(self, error: ServiceError) -> None:
        self._end.set_exception(error)

    async def wait(self) -> None:
        await self._end
