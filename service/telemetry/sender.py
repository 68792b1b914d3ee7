"""Sends spans to a collector: `python -m service.telemetry.sender VERSION`, started by `post`.

    stdin   trees, as `traces` writes them; a line each
    stdout  first {"fault": null}, or why the OTEL_… variables cannot be followed; then {"exported": spans},
            {"failed": spans} for every batch, and {"said": what a library complains of}; a line each

It ends with stdin, so a service that was killed leaves none behind, and its last spans are sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from service.errors import StartError
from service.telemetry.export import exporter_from_environment, queue_spans
from service.telemetry.quiet import Quiet
from service.telemetry.spans import Spans, resource

CLOSE_S = 2.0
NICENESS = 10

Say = Callable[[dict[str, object]], None]


class Reported(SpanExporter):
    """An exporter whose results are told."""

    def __init__(self, exporter: SpanExporter, say: Say) -> None:
        self._exporter = exporter
        self._say = say

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._say({"exported" if result is SpanExportResult.SUCCESS else "failed": len(spans)})
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def main() -> None:
    """Serve until stdin ends. Signals are for the service, which closes stdin."""
    os.setpgid(0, 0)
    _stand_back()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    say = _mouth()
    try:
        exporter = exporter_from_environment()
    except StartError as exc:
        say({"fault": str(exc)})
        return
    assert exporter is not None, "this is started only where the variables want something exported"
    Quiet(lambda text: say({"said": text})).attach()
    most = queue_spans()
    processor = BatchSpanProcessor(
        Reported(exporter, say), max_queue_size=most.waiting, max_export_batch_size=most.batch
    )
    say({"fault": None})
    _serve(processor, Spans(resource(sys.argv[1]), sys.argv[1]))
    # An exporter in the middle of its retries does not let itself be stopped.
    last = threading.Thread(target=processor.shutdown, daemon=True)
    last.start()
    last.join(CLOSE_S)
    logging.shutdown()
    os._exit(0)


def _stand_back() -> None:
    """Where processors are few, answers go first: this is not to take theirs when a tree wakes it."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _serve(processor: BatchSpanProcessor, spans: Spans) -> None:
    for line in sys.stdin.buffer:
        for span in spans.of(orjson.loads(line)):
            processor.on_end(span)


def _mouth() -> Say:
    """Words to the service. What else is printed, as the console exporter does, goes where errors go."""
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(word: dict[str, object]) -> None:
        try:
            os.write(out, orjson.dumps(word) + b"\n")
        except BrokenPipeError:
            return  # the service has gone, and what is left is sent all the same

    return say


if __name__ == "__main__":
    main()
