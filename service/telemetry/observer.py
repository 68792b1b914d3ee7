"""What the app holds: it opens a record for each request, and when that is over tells everybody once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
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


class Observer:
    """Opens observations. One for the whole service."""

    def __init__(self, metrics: Metrics, traces: Traces, *, trace_content: bool = False) -> None:
        """`trace_content`: spans hold what was asked and answered."""
        self.metrics = metrics
        self.traces = traces
        self.trace_content = trace_content
        self._crowd = Crowd()
        self._sampling: asyncio.Task[None] | None = None

    def open(
        self,
        request_id: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        route: str = CHAT_ROUTE,
        response_id: str = "",
        model: str = "",
        client: str | None = None,
    ) -> Observation:
        """Begin to observe a request whose header has arrived; `headers` are ASGI's, `client` its address."""
        record = RequestRecord(
            request_id,
            route=route,
            response_id=response_id,
            model=model,
            client=client,
            crowd=self._crowd,
        )
        observation = Observation(self, record, self.traces.open(headers, route))
        self.metrics.inflight.add(record)
        return observation

    def start(self) -> None:
        """Begin to measure the event loop this is called on."""
        self._sampling = asyncio.get_running_loop().create_task(
            sample_loop_lag(self.metrics.observe_loop_lag)
        )

    async def aclose(self) -> None:
        """Stop measuring and send the last spans, within a short limit."""
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
        """The request is over: tell metrics, trace and log. Never waits or raises; harmless when repeated."""
        if self.record.closed_s is not None:
            return
        self.record.close()
        self._observer.metrics.inflight.discard(self.record)
        try:
            self._tell(self.record.closed_s or time.monotonic())
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
