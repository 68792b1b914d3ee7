"""What the app holds: it opens a record for each request, and when that is over tells everybody once.

Requests that end soon after one another are told of together. Code that has just run is several times
faster than code that the streams in between have pushed out of the processor's caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InternalFault, ServiceError
from service.telemetry import log as request_log
from service.telemetry.content import Content
from service.telemetry.crowd import Crowd
from service.telemetry.looplag import sample_loop_lag
from service.telemetry.metrics import Metrics
from service.telemetry.outcome import outcome
from service.telemetry.phases import Phases, derive, phases
from service.telemetry.record import CHAT_ROUTE, RequestRecord
from service.telemetry.timeline import timeline
from service.telemetry.traces import Trace, Traces
from service.telemetry.tree import tree

log = logging.getLogger(__name__)

TOGETHER_S = 0.25  # how long the first of them may wait
AT_ONCE = 16  # 2 to 4 ms, after which streams have their turn


class Observer:
    """Opens observations. One for the whole service."""

    def __init__(self, metrics: Metrics, traces: Traces, *, trace_content: bool = False) -> None:
        """`trace_content`: spans hold what was asked and answered."""
        self.metrics = metrics
        self.traces = traces
        self.trace_content = trace_content
        self._crowd = Crowd()
        self._sampling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: deque[Observation] = deque()  # and not told of yet
        self._soon: asyncio.TimerHandle | None = None

    def open(
        self,
        request_id: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        route: str = CHAT_ROUTE,
        response_id: str = "",
        model: str = "",
        client: str | None = None,
        received_s: float | None = None,
    ) -> Observation:
        """Begin to observe a request whose header has arrived; `headers` are ASGI's, `client` its address.

        `received_s`: when it has, on the monotonic clock; now, where that is not known.
        """
        record = RequestRecord(
            request_id,
            route=route,
            response_id=response_id,
            model=model,
            client=client,
            crowd=self._crowd,
        )
        record.begun_s = time.monotonic()
        record.received_s = record.begun_s if received_s is None else received_s
        observation = Observation(self, record, self.traces.open(headers, route))
        self.metrics.inflight.add(record)
        return observation

    def start(self) -> None:
        """Measure the event loop this is called on; from now on requests are told of together."""
        self._loop = asyncio.get_running_loop()
        self._sampling = self._loop.create_task(sample_loop_lag(self.metrics.observe_loop_lag))

    def over(self, observation: Observation) -> None:
        """Tell of a request that is over, soon."""
        self._over.append(observation)
        if self._loop is None:
            self.tell()
        elif self._soon is None:
            self._soon = self._loop.call_later(TOGETHER_S, self._in_turn, self._loop)

    def tell(self) -> None:
        """Tell of all that are over, now."""
        while self._tell_some():
            pass

    def tell_at_once(self) -> None:
        """From now on, and of all that are over already: there may be no later."""
        self._loop = None
        self.tell()

    async def told(self) -> None:
        """Returns when all that are over have been told of; streams have their turn in between."""
        while self._tell_some():  # noqa: ASYNC110  # it waits for nothing, it makes way
            await asyncio.sleep(0)

    def _tell_some(self) -> bool:
        """Whether there are more."""
        for _ in range(min(AT_ONCE, len(self._over))):
            self._over.popleft().tell()
        return bool(self._over)

    def _in_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon = loop.call_later(0, self._in_turn, loop) if self._tell_some() else None

    async def aclose(self) -> None:
        """Stop measuring, tell of the last requests and send their spans, within a short limit."""
        self.tell_at_once()
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
        await self.traces.aclose()


class Observation:
    """One request under observation. Whoever holds it closes it, whatever has happened before."""

    def __init__(self, observer: Observer, record: RequestRecord, trace: Trace) -> None:
        self.record = record
        self._observer = observer
        self._trace = trace

    @property
    def trace_id(self) -> str | None:
        """Known from the first moment on, where there is a trace."""
        return self._trace.trace_id

    def asked(self, messages: Sequence[Mapping[str, Any]], n: int) -> None:
        """Keep the words of the request, if its span is to hold them."""
        if self._observer.trace_content and self._trace.sampled:
            self.record.content = Content(messages, n)

    def phases(self) -> Phases:
        """The phases so far."""
        return phases(self.record, time.monotonic())

    def failed(self, exc: BaseException) -> None:
        """Note why the request is refused or has failed. The first reason counts."""
        if self.record.error is None:
            self.record.error = exc if isinstance(exc, ServiceError) else InternalFault("an unexpected error")

    def close(self) -> None:
        """The request is over. Never waits or raises; harmless when repeated."""
        if self.record.closed_s is not None:
            return
        self.record.close()
        self._observer.metrics.inflight.discard(self.record)
        self._observer.over(self)

    def tell(self) -> None:
        """Tell metrics, trace and log of a request that is over. Never waits or raises."""
        assert self.record.closed_s is not None
        try:
            self._tell(self.record.closed_s)
        except Exception:  # an answer is never lost to what only watches it
            log.exception("a request could not be accounted for")

    def _tell(self, now_s: float) -> None:
        record, trace = self.record, self._trace
        times = timeline(record, now_s)
        found, ended = derive(record, times), outcome(record)
        exported = trace.sampled and self._observer.traces.finish(
            trace, tree(record, times, found, ended), record.wall_offset_s
        )
        self._observer.metrics.observe(record, found, ended, trace.trace_id if exported else None)
        request_log.write(record, found, ended, trace.trace_id)
