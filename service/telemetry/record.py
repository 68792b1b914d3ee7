"""One request as plain data, filled in on its way. Nothing here derives, exports or knows HTTP.

Times are seconds on the machine's monotonic clock, which the engine's process shares; None stands
for "did not happen". `wall_offset_s` turns them into wall time for traces.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

from service.budget.plan import Budget
from service.engine.protocol import Delta, EngineClock
from service.errors import ServiceError
from service.prompt.difference import Miss
from service.telemetry.buckets import GAP_S
from service.telemetry.content import Content
from service.telemetry.crowd import Crowd

CHAT_ROUTE = "/v1/chat/completions"

Outcome = Literal[
    "ok",
    "client_abort",
    "invalid",
    "budget_rejected",
    "rate_limited",
    "overloaded",
    "deadline",
    "draining",
    "engine_error",
]


@dataclass(slots=True)
class ChoiceRecord:
    """One of the n answers."""

    first_delta_s: float | None = None  # when the service had its first delta
    last_delta_s: float = 0.0
    output_tokens: int = 0
    finish: str | None = None
    clock: EngineClock | None = None  # the engine's own times; with the last delta they are final
    preempted_s: list[float] = field(default_factory=list)  # when a preemption was noticed
    company: float | None = None  # answers being written during this one, itself included, on average
    crowd_area: float = 0.0  # of the crowd when this choice began


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request."""

    request_id: str
    received_s: float = field(default_factory=time.monotonic)  # the request line and headers were there
    wall_offset_s: float = field(default_factory=lambda: time.time() - time.monotonic())
    route: str = CHAT_ROUTE  # as the framework declares it
    model: str = ""
    tenant: str = "anonymous"
    client: str | None = None  # address
    stream: bool = False
    n: int = 1
    response_id: str = ""

    begun_s: float | None = None  # the service took it up; until then others had the event loop
    read_s: float | None = None  # the whole body was there
    parsed_s: float | None = None  # body checked; rendering begins
    rendered_s: float | None = None  # the prompt is token ids and has its budget; admission begins
    admitted_s: float | None = None  # a slot is held; the request goes to the engine
    submitted_s: float | None = None  # the engine has taken it
    first_content_s: float | None = None  # the first content byte was handed to the server's socket
    last_byte_s: float | None = None  # the last byte was handed over
    closed_s: float | None = None

    status: int | None = None  # of the response, once it has begun
    budget: Budget | None = None
    forecast_tokens: int | None = None  # of the prompt, that should be cached; None: nobody knows
    miss: Miss | None = None  # why no more of it should be
    predicted_first_token_s: float | None = None  # from `received_s` on; None: unknown
    choices: list[ChoiceRecord] = field(default_factory=list)
    reasons: bool = False  # thinking is told from answer, where there is any
    reasoning_tokens: int = 0  # of the output, in all choices; its marks included
    error: ServiceError | None = None
    client_left: bool = False
    content: Content | None = None  # its words, where spans are to hold them

    client_wait_s: float = 0.0  # bytes were ready and the client did not read; periods that are over
    client_behind_s: float | None = None  # since when it does not read; None while it keeps up
    engine_end_wait_s: float = 0.0  # how much of the waiting lies before the engine's end

    gaps: list[int] = field(default_factory=lambda: [0] * (len(GAP_S) + 1))  # between deltas, by bucket
    longest_gap_s: float = 0.0
    crowd: Crowd | None = field(default=None, repr=False)

    def admitted(self, predicted_s: float | None) -> None:
        """A slot is held; `predicted_s`: when the first token was expected, after the prompt was ready."""
        self.admitted_s = time.monotonic()
        if predicted_s is not None and self.rendered_s is not None:
            self.predicted_first_token_s = self.rendered_s - self.received_s + predicted_s

    def foreseen(self, cached_tokens: int, miss: Miss | None) -> None:
        """How much of the prompt should be in the cache, and why no more."""
        self.forecast_tokens, self.miss = cached_tokens, miss

    def submitted(self, n: int) -> None:
        """The engine has taken the request."""
        self.submitted_s = time.monotonic()
        self.choices = [ChoiceRecord() for _ in range(n)]

    def saw(self, delta: Delta) -> None:
        """Note a delta. Called for every token: it must stay this small."""
        now = time.monotonic()
        choice = self.choices[delta.index]
        choice.output_tokens += len(delta.token_ids)
        if choice.first_delta_s is None:
            self._began(choice, now)
        else:
            gap = now - choice.last_delta_s
            self.gaps[bisect_left(GAP_S, gap)] += 1
            if gap > self.longest_gap_s:
                self.longest_gap_s = gap
        choice.last_delta_s = now
        if delta.clock is not None:
            _clocked(choice, delta.clock, now)
        if delta.finish is not None:
            choice.finish = delta.finish
            self.engine_end_wait_s = self.waited_for_client(now)
            self._ended(choice, now)

    def client_stalls(self) -> None:
        """Bytes are ready and the client does not read."""
        if self.client_behind_s is None:
            self.client_behind_s = time.monotonic()

    def client_reads(self) -> None:
        """The client has caught up."""
        now = time.monotonic()
        self.client_wait_s = self.waited_for_client(now)
        self.client_behind_s = None

    def close(self) -> None:
        """Nothing more happens to this request."""
        if self.closed_s is not None:
            return
        self.closed_s = time.monotonic()
        for choice in self.choices:
            if choice.first_delta_s is not None and choice.finish is None:
                self._ended(choice, self.closed_s)

    def waited_for_client(self, now_s: float) -> float:
        """All the time until `now_s` in which bytes were ready and the client did not read."""
        if self.client_behind_s is None:
            return self.client_wait_s
        return self.client_wait_s + max(0.0, now_s - self.client_behind_s)

    @property
    def output_tokens(self) -> int:
        """Tokens made in all choices, the end tokens included."""
        return sum(choice.output_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine had in its prefix cache."""
        return max((choice.clock.cached_tokens for choice in self.choices if choice.clock), default=0)

    @property
    def first_token_s(self) -> float | None:
        """When the service had the first token of any choice."""
        seen = (choice.first_delta_s for choice in self.choices if choice.first_delta_s is not None)
        return min(seen, default=None)

    @property
    def begun(self) -> bool:
        """Whether the service has seen a token."""
        return self.first_token_s is not None

    @property
    def complete(self) -> bool:
        """Whether every choice has ended as it should."""
        return bool(self.choices) and all(choice.finish is not None for choice in self.choices)

    def _began(self, choice: ChoiceRecord, now_s: float) -> None:
        choice.first_delta_s = now_s
        if self.crowd is not None:
            choice.crowd_area = self.crowd.enter(now_s)

    def _ended(self, choice: ChoiceRecord, now_s: float) -> None:
        if self.crowd is None or choice.first_delta_s is None:
            return
        area = self.crowd.leave(now_s) - choice.crowd_area
        if now_s > choice.first_delta_s:
            choice.company = area / (now_s - choice.first_delta_s)


def _clocked(choice: ChoiceRecord, clock: EngineClock, now_s: float) -> None:
    before = choice.clock.preemptions if choice.clock is not None else 0
    choice.preempted_s += [now_s] * (clock.preemptions - before)
    choice.clock = clock
