"""One replica as a row of events: who is admitted, what is read, who gets a token, who ends.

As vLLM schedules: requests are admitted in the order they came, as long as places and cache are there; their
prompts are read in chunks, in the same steps in which the others get their next token.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from copy import deepcopy
from math import ceil

from bench.planning.shape import Engine
from bench.planning.traffic import Request
from service.admission.admission import RECENT


class Replica:
    """Runs requests through an engine's steps. Steps in which nobody comes or goes are taken together."""

    def __init__(
        self,
        engine: Engine,
        max_unfinished: int | None = None,
        promise_s: float | None = None,
        patience_s: float = 60,
    ) -> None:
        self._engine = engine
        self._max_unfinished = max_unfinished  # waiting and running together, as vLLM bounds its queue
        self._promise_s = promise_s  # who would wait longer for a first token is refused, as by Twophase
        self._refused_share = 0.0  # of late
        self._patience_s = patience_s
        self._now = 0.0
        self._steps = 0
        self._just_ended = 0
        self._waiting: deque[Request] = deque()
        self._reading: deque[list[int]] = deque()  # tokens left to read, tokens before them, index in _read
        self._read: list[Request] = []
        self._decoding: list[tuple[int, float, int, Request]] = []  # by the step of the last token
        self._context = 0  # positions of all that decode
        self._reserved = 0  # positions promised to all that run
        self._prefixes: OrderedDict[int, int] = OrderedDict()
        self._kept = 0

    def run(self, requests: Iterable[Request]) -> None:
        """All of them, to the end of the last; each is told what became of it."""
        source = iter(requests)
        coming = next(source, None)
        while coming or self._waiting or self._reading or self._decoding:
            while coming and coming.at <= self._now:
                self._come(coming)
                coming = next(source, None)
            self._admit()
            if self._reading:
                self._mixed_step()
            elif self._decoding:
                self._decode_until(coming.at if coming else None)
            elif coming:
                self._now = max(self._now, coming.at)

    def _come(self, request: Request) -> None:
        unfinished = len(self._waiting) + self._running()
        if request.at < self._now:  # it came in the step that has passed, and saw who ended with it
            unfinished += self._just_ended
        full = self._max_unfinished is not None and unfinished >= self._max_unfinished
        too_long = request.prompt + request.output > self._engine.kv_tokens
        request.refused = full or too_long or not self._in_time(request)
        if not request.refused:
            self._waiting.append(request)

    def _in_time(self, request: Request) -> bool:
        """Whether its first token would come within the promise, of which the service gives the less the more
        it has refused of late."""
        if self._promise_s is None:
            return True
        late = self._foreseen_s(request) > self._promise_s * (1 - self._refused_share / 2)
        self._refused_share += (late - self._refused_share) / RECENT
        return not late

    def _foreseen_s(self, request: Request) -> float:
        """Its time to the first token, if nobody else came."""
        ahead, its = deepcopy((self, request))
        ahead._waiting.append(its)
        ahead.run([])
        return its.ttft_s

    def _running(self) -> int:
        return len(self._reading) + len(self._decoding)

    def _admit(self) -> None:
        while self._waiting and self._running() < self._engine.max_running:
            request = self._waiting[0]
            if self._now - request.at > self._patience_s:  # its caller has gone
                self._waiting.popleft()
                continue
            if self._reserved + request.prompt + request.output > self._engine.kv_tokens:
                return
            self._waiting.popleft()
            self._reserved += request.prompt + request.output
            request.cached = self._cached(request)
            self._reading.append([request.prompt - request.cached, request.cached, len(self._read)])
            self._read.append(request)

    def _cached(self, request: Request) -> int:
        """Tokens of its prefix that are there, in whole blocks; from now on all of it is."""
        if not request.prefix:
            return 0
        there = request.group in self._prefixes
        self._prefixes[request.group] = request.prefix
        self._prefixes.move_to_end(request.group)
        self._kept += 0 if there else request.prefix
        while self._prefixes and self._kept + self._reserved > self._engine.kv_tokens:
            self._kept -= self._prefixes.popitem(last=False)[1]
        blocks = request.prefix // self._engine.block_tokens
        return min(blocks * self._engine.block_tokens, request.prompt - 1) if there else 0

    def _mixed_step(self) -> None:
        room, taken, before = self._engine.step_tokens, 0, 0.0
        ready: list[Request] = []
        while self._reading and room:
            left, already, index = entry = self._reading[0]
            chunk = min(left, room)
            taken, room = taken + chunk, room - chunk
            before += chunk * (already + chunk / 2)
            entry[0], entry[1] = left - chunk, already + chunk
            if entry[0]:
                break
            self._reading.popleft()
            ready.append(self._read[index])
        running, before = len(self._decoding), before / taken
        self._pass(1, self._engine.step_seconds(running, self._context, taken, before, len(ready)))
        for request in ready:
            self._begin(request)

    def _begin(self, request: Request) -> None:
        request.first = self._now
        if request.output == 1:
            self._end(request)
            return
        self._context += request.prompt + 1
        last = self._steps + request.output - 1
        heapq.heappush(self._decoding, (last, request.at, id(request), request))

    def _decode_until(self, coming: float | None) -> None:
        """So many steps that either somebody has ended, or somebody has come."""
        running = len(self._decoding)
        steps = self._decoding[0][0] - self._steps
        each = self._engine.step_seconds(running, self._context + running * steps / 2)
        if coming is not None:
            steps = min(steps, max(1, ceil((coming - self._now) / each)))
        self._pass(steps, steps * each)

    def _pass(self, steps: int, seconds: float) -> None:
        self._now += seconds
        self._just_ended = 0
        self._steps += steps
        self._context += steps * len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._steps:
            request = heapq.heappop(self._decoding)[-1]
            self._context -= request.prompt + request.output
            self._end(request)

    def _end(self, request: Request) -> None:
        request.ended = self._now
        self._just_ended += 1
        self._reserved -= request.prompt + request.output
