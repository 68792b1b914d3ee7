"""Traces: a trace id from a request's first moment on, the spans when it is over.

Ids and the decision whether to sample come from the SDK at the start, since log and exemplars need
them. The spans are made in one go at the end, already ended: that takes a tenth of what starting
and ending them one by one does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.errors import StartError, shown
from service.telemetry import conventions as named
from service.telemetry.export import Counted, Ledger, exporter_from_environment
from service.telemetry.quiet import Quiet
from service.telemetry.tree import Node, root_name

NAME = "twophase"
CLOSE_S = 2.0  # what a collector that does not answer may add to the service's exit
LONGEST_HEADER = 512
UNSET = Status()


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace a request belongs to. `sampled`: its spans will be exported."""

    trace_id: str | None = None
    sampled: bool = False
    root: SpanContext | None = None
    caller: SpanContext | None = None


class Traces:
    """Opens and finishes traces. Without a processor it only reads the caller's trace id, for the log."""

    def __init__(
        self,
        provider: TracerProvider | None = None,
        processor: SpanProcessor | None = None,
        *,
        capacity: int = 2048,
        version: str = "",
        ledger: Ledger | None = None,
        quiet: Quiet | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self._provider = provider
        self._processor = processor
        self._capacity = capacity
        self._scope = InstrumentationScope(NAME, version)
        self._context_of = TraceContextTextMapPropagator().extract
        self._quiet = quiet

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
        """Export the tree of a request that is over; whether it is on its way.

        Never waits: what does not fit the queue is dropped, as a whole, since half a tree would mislead.
        """
        if trace.root is None or not trace.sampled or self._processor is None:
            return False
        size = tree.size
        if self.ledger.pending + size > self._capacity:
            self.ledger.dropped += size
            return False
        self.ledger.handed += size
        self._export(tree, trace.root, trace.caller, wall_offset_s, SpanKind.SERVER)
        return True

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Send what is left, for as long as the limit allows. Blocks: not for the event loop."""
        if self._processor is None:
            return
        flushing = threading.Thread(target=self._processor.shutdown, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(limit_s)
        if self._quiet is not None and not flushing.is_alive():
            self._quiet.detach()

    def _export(
        self,
        node: Node,
        context: SpanContext,
        parent: SpanContext | None,
        wall_offset_s: float,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        assert self._provider is not None and self._processor is not None
        for child in node.children:
            self._export(child, _below(context, self._provider), context, wall_offset_s)
        span = ReadableSpan(
            node.name,
            context,
            parent,
            self._provider.resource,
            node.attributes,
            _events(node, wall_offset_s),
            kind=kind,
            status=UNSET if node.error is None else Status(StatusCode.ERROR, node.error),
            start_time=_ns(node.start_s, wall_offset_s),
            end_time=_ns(node.end_s, wall_offset_s),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)


def traces_from_environment(version: str) -> Traces:
    """Traces as the OTEL_… variables want them.

    Raises:
        StartError: a variable has a value this service cannot follow.
    """
    exporter = exporter_from_environment()
    if exporter is None:
        return Traces()
    capacity = _whole_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    batch = min(_whole_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), capacity)
    ledger, quiet = Ledger(), Quiet()
    quiet.attach()
    processor = BatchSpanProcessor(
        Counted(exporter, ledger), max_queue_size=capacity, max_export_batch_size=batch
    )
    provider = TracerProvider(resource=resource(version), shutdown_on_exit=False)
    return Traces(provider, processor, capacity=capacity, version=version, ledger=ledger, quiet=quiet)


class _Resource(Resource):
    """One object, compared as such: the SDK's own is written out as JSON for the hash of every span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def resource(version: str) -> Resource:
    """Who we are: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and our own name where they have none."""
    known = dict(Resource.create().attributes)
    if str(known[SERVICE_NAME]).startswith("unknown_service"):
        known[SERVICE_NAME] = NAME
    return _Resource({SERVICE_VERSION: version, **known})


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


def _below(parent: SpanContext, provider: TracerProvider) -> SpanContext:
    """The context of a new span in the same trace."""
    span_id = provider.id_generator.generate_span_id()
    return SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state)


def _ns(seconds: float, wall_offset_s: float) -> int:
    return int((seconds + wall_offset_s) * 1e9)


def _events(node: Node, wall_offset_s: float) -> list[Event]:
    """Preemptions, noticed with the token that followed them."""
    return [
        Event(named.PREEMPTED, timestamp=_ns(min(max(at, node.start_s), node.end_s), wall_offset_s))
        for at in node.preempted_s
    ]


def _whole_number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise StartError(f"{name}={shown(text)} is not a whole number above 0")
    return int(text)
