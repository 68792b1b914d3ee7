"""From the tree of a request, as `traces` writes it, to spans of the SDK, over when they are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from service.telemetry import conventions as named

NAME = "twophase"
UNSET = Status()


class Spans:
    """Makes spans of one service."""

    def __init__(self, resource: Resource, version: str, ids: IdGenerator | None = None) -> None:
        self._resource = resource
        self._scope = InstrumentationScope(NAME, version)
        self._ids = ids or RandomIdGenerator()

    def of(self, parcel: dict[str, Any]) -> Iterator[ReadableSpan]:
        """The spans of one tree, children before their parents."""
        trace_id, flags = int(parcel["trace"], 16), TraceFlags(parcel["flags"])
        state = TraceState.from_header([parcel["state"]]) if parcel["state"] else TraceState()
        root = SpanContext(trace_id, int(parcel["span"], 16), False, flags, state)
        caller = parcel["caller"]
        parent = None if caller is None else SpanContext(trace_id, int(caller, 16), True, flags, state)
        yield from self._below(parcel["tree"], root, parent, parcel["offset_s"], SpanKind.SERVER)

    def _below(
        self,
        node: dict[str, Any],
        context: SpanContext,
        parent: SpanContext | None,
        offset_s: float,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[ReadableSpan]:
        for child in node["children"]:
            own = SpanContext(
                context.trace_id,
                self._ids.generate_span_id(),
                False,
                context.trace_flags,
                context.trace_state,
            )
            yield from self._below(child, own, context, offset_s)
        yield ReadableSpan(
            node["name"],
            context,
            parent,
            self._resource,
            node["attributes"],
            _events(node, offset_s),
            kind=kind,
            status=UNSET if node["error"] is None else Status(StatusCode.ERROR, node["error"]),
            start_time=_ns(node["start_s"], offset_s),
            end_time=_ns(node["end_s"], offset_s),
            instrumentation_scope=self._scope,
        )


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


def _events(node: dict[str, Any], offset_s: float) -> list[Event]:
    """Preemptions, noticed with the token that followed them."""
    return [
        Event(named.PREEMPTED, timestamp=_ns(min(max(at, node["start_s"]), node["end_s"]), offset_s))
        for at in node["preempted_s"]
    ]


def _ns(seconds: float, offset_s: float) -> int:
    return int((seconds + offset_s) * 1e9)
