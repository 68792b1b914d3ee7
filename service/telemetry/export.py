"""Ways out for spans, chosen by the standard OTEL_… variables. Nothing is exported unless they ask for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from service.errors import StartError, shown

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC_PORT = 4317  # where a collector listens for gRPC unless told otherwise


class Ledger:
    """What became of the spans. Handing over and settling happen in two threads, each with its own counts."""

    def __init__(self) -> None:
        self.handed = 0
        self.exported = 0
        self.failed = 0
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Spans that wait for the collector, or are on their way to it."""
        return self.handed - self.exported - self.failed


class Counted(SpanExporter):
    """An exporter whose results are kept in a ledger."""

    def __init__(self, exporter: SpanExporter, ledger: Ledger) -> None:
        self._exporter = exporter
        self._ledger = ledger

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._ledger.exported += len(spans)
            else:
                self._ledger.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def exporter_from_environment() -> SpanExporter | None:
    """The exporter that the variables ask for, or none.

    Raises:
        StartError: a variable has a value this service cannot follow.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    wish = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if not wish:
        wish = "otlp" if any(os.environ.get(name) for name in ENDPOINTS) else "none"
    if wish == "none":
        return None
    if wish == "console":
        return ConsoleSpanExporter()
    if wish == "otlp":
        return _otlp()
    raise StartError(f"OTEL_TRACES_EXPORTER={shown(wish)} is none of otlp, console and none")


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
