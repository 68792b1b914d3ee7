"""Ways out for spans, chosen by the standard OTEL_… variables. Nothing is exported unless they ask for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from service.errors import StartError, shown

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC_PORT = 4317  # where a collector listens for gRPC unless told otherwise


@dataclass(frozen=True, slots=True)
class QueueSpans:
    """How many spans may be on their way, and how many are sent at once."""

    waiting: int
    batch: int


def wanted() -> bool:
    """Whether the variables ask for spans to be exported."""
    return _wish() != "none"


def queue_spans() -> QueueSpans:
    """The bounds that the variables set.

    Raises:
        StartError: one is not a number.
    """
    waiting = _whole_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return QueueSpans(waiting, min(_whole_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), waiting))


def exporter_from_environment() -> SpanExporter | None:
    """The exporter that the variables ask for, or none.

    Raises:
        StartError: a variable has a value this service cannot follow.
    """
    wish = _wish()
    if wish == "none":
        return None
    if wish == "console":
        return ConsoleSpanExporter()
    if wish == "otlp":
        return _otlp()
    raise StartError(f"OTEL_TRACES_EXPORTER={shown(wish)} is none of otlp, console and none")


def _wish() -> str:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    named = any(os.environ.get(name) for name in ENDPOINTS)
    return os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or ("otlp" if named else "none")


def _otlp() -> SpanExporter:
    protocol = _first_set(PROTOCOLS) or _usual_protocol()
    try:
        # Imported here: gRPC alone takes half a second and 40 MB, which nobody pays for without wanting it.
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            return Grpc()
        if protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

            return Http()
    except Exception as exc:
        raise StartError(
            f"the OTEL_EXPORTER_OTLP_… variables cannot be followed: {shown(str(exc), 200)}"
        ) from exc
    raise StartError(f"{PROTOCOLS[1]}={shown(protocol)} is neither grpc nor http/protobuf")


def _usual_protocol() -> str:
    """The standard's default is HTTP. Who names gRPC's port and no protocol means gRPC."""
    endpoint = urlsplit(_first_set(ENDPOINTS) or "")
    return "grpc" if endpoint.netloc.rpartition(":")[2] == str(GRPC_PORT) else "http/protobuf"


def _first_set(names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def _whole_number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise StartError(f"{name}={shown(text)} is not a whole number above 0")
    return int(text)
