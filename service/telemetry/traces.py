"""Traces: a trace id from a request's first moment on, its tree when it is over.

Ids and the decision whether to sample come from the SDK at the start, since log and exemplars need
them. The spans are made when the request is over, already ended, by the program that sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.telemetry.export import queue_spans, wanted
from service.telemetry.post import Ledger, Post
from service.telemetry.quiet import hush_parsers
from service.telemetry.tree import Node, root_name

CLOSE_S = 2.0  # what a collector that does not answer may add to the service's exit
LONGEST_HEADER = 512


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace a request belongs to. `sampled`: its spans will be exported."""

    trace_id: str | None = None
    sampled: bool = False
    root: SpanContext | None = None
    caller: SpanContext | None = None


class Way(Protocol):
    """Where trees go."""

    ledger: Ledger

    async def start(self) -> None:
        """Become ready."""

    def send(self, tree: bytes, spans: int) -> bool:
        """Send a line of JSON that stands for so many spans; whether it is on its way. Never waits."""

    async def aclose(self, limit_s: float) -> None:
        """Send what is left, for as long as the limit allows."""


class Traces:
    """Opens and finishes traces. Without a way out it only reads the caller's trace id, for the log."""

    def __init__(self, provider: TracerProvider | None = None, way: Way | None = None) -> None:
        self.ledger = Ledger() if way is None else way.ledger
        self._provider = provider
        self._way = way
        self._context_of = TraceContextTextMapPropagator().extract

    async def start(self) -> None:
        """Be ready to export.

        Raises:
            StartError: an OTEL_… variable has a value that cannot be followed.
        """
        if self._way is not None:
            await self._way.start()

    def open(self, headers: Sequence[tuple[bytes, bytes]], route: str = "") -> Trace:
        """The trace of a request that has just come in, below the caller's span where it names one."""
        carrier = _carrier(headers)
        if self._provider is None:
            carrier.pop("tracestate", None)
        context = self._context_of(carrier) if carrier else Context()
        span = get_current_span(context).get_span_context()
        caller = span if span.is_valid else None
        if self._provider is None:
            return Trace(None if caller is None else format_trace_id(caller.trace_id))
        return _begun(self._provider, context, caller, root_name(route))

    def finish(self, trace: Trace, tree: Node, wall_offset_s: float) -> bool:
        """Export the tree of a request that is over; whether it is on its way. Never waits."""
        if trace.root is None or not trace.sampled or self._way is None:
            return False
        parcel = {
            "trace": trace.trace_id,
            "span": format_span_id(trace.root.span_id),
            "flags": int(trace.root.trace_flags),
            "state": trace.root.trace_state.to_header(),
            "caller": None if trace.caller is None else format_span_id(trace.caller.span_id),
            "offset_s": wall_offset_s,
            "tree": tree,
        }
        return self._way.send(orjson.dumps(parcel, option=orjson.OPT_APPEND_NEWLINE), tree.size)

    async def aclose(self, limit_s: float = CLOSE_S) -> None:
        """Send what is left, for as long as the limit allows."""
        if self._way is not None:
            await self._way.aclose(limit_s)


def traces_from_environment(version: str) -> Traces:
    """Traces as the OTEL_… variables want them.

    Raises:
        StartError: one has a value that cannot be followed. `Traces.start` finds the others.
    """
    if not wanted():
        return Traces()
    hush_parsers()
    way = Post(version, queue_spans().waiting)
    # Only its ids and its sampler are used here: the resource is the sender's to find.
    return Traces(TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False), way)


def _carrier(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The W3C headers. Two `traceparent` are none; overlong ones are left out before anybody logs them."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1 or len(parents[0]) > LONGEST_HEADER:
        return {}
    carrier = {"traceparent": parents[0].decode("latin-1")}
    state = b",".join(value for name, value in headers if name == b"tracestate")
    if state and len(state) <= LONGEST_HEADER:
        carrier["tracestate"] = state.decode("latin-1")
    return carrier


def _begun(provider: TracerProvider, context: Context, caller: SpanContext | None, name: str) -> Trace:
    """A trace with its root's ids, as the SDK begins one."""
    ids = provider.id_generator
    trace_id = ids.generate_trace_id() if caller is None else caller.trace_id
    sampling = provider.sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
    sampled = sampling.decision is Decision.RECORD_AND_SAMPLE
    random_id = ids.is_trace_id_random() if caller is None else caller.trace_flags.random_trace_id
    flags = (TraceFlags.SAMPLED if sampled else 0) | (TraceFlags.RANDOM_TRACE_ID if random_id else 0)
    root = SpanContext(
        trace_id, ids.generate_span_id(), False, TraceFlags(flags), trace_state=sampling.trace_state
    )
    return Trace(format_trace_id(trace_id), sampled, root, caller)
