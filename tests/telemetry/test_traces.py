from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from service.errors import EngineUnavailable, InvalidValue
from service.telemetry.export import Counted, Ledger
from service.telemetry.outcome import outcome
from service.telemetry.phases import derive
from service.telemetry.quiet import Quiet
from service.telemetry.record import RequestRecord
from service.telemetry.timeline import timeline
from service.telemetry.traces import Trace, Traces, resource
from service.telemetry.tree import tree
from tests.telemetry.conftest import RootLog
from tests.telemetry.records import START_S, WALL_OFFSET_S, answered, choice, record, refused

CALLER = "11112222333344445555666677778888"
PARENT = "aaaabbbbccccdddd"
SAMPLED = (b"traceparent", f"00-{CALLER}-{PARENT}-01".encode())
UNSAMPLED = (b"traceparent", f"00-{CALLER}-{PARENT}-00".encode())

Headers = Sequence[tuple[bytes, bytes]]


class CountingIds(IdGenerator):
    """1, 2, 3 …, so that a test can name its spans."""

    def __init__(self) -> None:
        self._spans = itertools.count(1)
        self._traces = itertools.count(1)

    def generate_span_id(self) -> int:
        return next(self._spans)

    def generate_trace_id(self) -> int:
        return next(self._traces)


class Recorder:
    """Traces that end in memory."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, capacity: int = 2048) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(
            sampler=ParentBased(sampler),
            resource=resource("1.2.3"),
            id_generator=CountingIds(),
            shutdown_on_exit=False,
        )
        ledger = Ledger()
        processor = SimpleSpanProcessor(Counted(self.exporter, ledger))
        self.traces = Traces(provider, processor, capacity=capacity, version="1.2.3", ledger=ledger)

    def run(self, made: RequestRecord, headers: Headers = ()) -> Trace:
        """Open and finish the trace of a record."""
        trace = self.traces.open(headers)
        times = timeline(made, time.monotonic())
        spans = tree(made, times, derive(made, times), outcome(made))
        self.traces.finish(trace, spans, made.wall_offset_s)
        return trace

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_each_span_hangs_below_the_one_around_it() -> None:
    recorder = Recorder()
    recorder.run(answered())
    assert {name: (span_id(span), parent_id(span)) for name, span in recorder.spans.items()} == {
        "POST /v1/chat/completions": (1, None),
        "chat tiny": (2, 1),
        "render": (3, 2),
        "admission": (4, 2),
        "queue": (5, 2),
        "prefill": (6, 2),
        "decode": (7, 2),
    }


def test_times_are_wall_time_to_the_microsecond() -> None:
    recorder = Recorder()
    recorder.run(answered())
    root, decode = recorder.spans["POST /v1/chat/completions"], recorder.spans["decode"]
    assert root.start_time == int((START_S + WALL_OFFSET_S) * 1e9)
    assert root.end_time is not None and decode.start_time is not None and decode.end_time is not None
    assert abs(root.end_time - root.start_time - 4_003_000_000) < 1000
    assert abs(decode.end_time - decode.start_time - 3_000_000_000) < 1000
    assert recorder.spans["prefill"].end_time == decode.start_time


def test_kinds_are_server_and_internal() -> None:
    recorder = Recorder()
    recorder.run(answered())
    root = recorder.spans.pop("POST /v1/chat/completions")
    assert root.kind is SpanKind.SERVER
    assert recorder.spans["chat tiny"].kind is SpanKind.INTERNAL


def test_the_callers_trace_is_gone_on_with() -> None:
    recorder = Recorder()
    trace = recorder.run(answered(), [SAMPLED, (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    assert trace.trace_id == CALLER
    assert {span.context.trace_id for span in recorder.spans.values()} == {int(CALLER, 16)}
    assert parent_id(recorder.spans["POST /v1/chat/completions"]) == int(PARENT, 16)
    assert {span.context.trace_state.to_header() for span in recorder.spans.values()} == {"a=1,b=2"}


def test_a_caller_that_is_not_sampled_is_not_exported_and_still_has_its_id() -> None:
    recorder = Recorder()
    trace = recorder.run(answered(), [UNSAMPLED])
    assert (trace.trace_id, trace.sampled, recorder.spans) == (CALLER, False, {})


def test_a_sampled_caller_is_exported_where_nothing_else_is() -> None:
    recorder = Recorder(ALWAYS_OFF)
    assert not recorder.run(answered()).sampled
    assert recorder.run(answered(), [SAMPLED]).sampled


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", b"nonsense")],
        [(b"traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [(b"traceparent", SAMPLED[1] + b"-" + b"x" * 1000)],
        [SAMPLED, (b"traceparent", b"00-" + b"9" * 32 + b"-" + b"9" * 16 + b"-01")],
    ],
)
def test_a_caller_that_cannot_be_believed_gets_a_new_trace(headers: Headers) -> None:
    recorder = Recorder()
    assert recorder.run(answered(), headers).trace_id == f"{1:032x}"
    assert parent_id(recorder.spans["POST /v1/chat/completions"]) is None


def test_faults_of_ours_are_errors_and_refusals_are_not() -> None:
    refusing, failing = Recorder(), Recorder()
    refusing.run(refused(InvalidValue("no")))
    failing.run(record(choice(finish=None), error=EngineUnavailable("x"), last_byte=2, closed=2))
    assert {span.status.status_code for span in refusing.spans.values()} == {StatusCode.UNSET}
    errors = [name for name, span in failing.spans.items() if span.status.status_code is StatusCode.ERROR]
    assert sorted(errors) == ["POST /v1/chat/completions", "chat tiny", "decode"]


def test_preemptions_are_events_inside_their_span() -> None:
    recorder = Recorder()
    recorder.run(answered(choice(preempted=(2.0,))))
    (event,) = recorder.spans["decode"].events
    assert (event.name, event.timestamp) == ("preempted", int((START_S + 2.0 + WALL_OFFSET_S) * 1e9))


def test_what_does_not_fit_the_queue_is_dropped_as_a_whole_and_counted() -> None:
    recorder = Recorder(capacity=6)
    recorder.run(answered())
    recorder.run(refused(InvalidValue("no")))
    assert (recorder.traces.ledger.dropped, recorder.traces.ledger.exported) == (7, 3)


def test_without_an_exporter_the_callers_trace_id_is_known_and_nothing_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traces = Traces()
    trace = traces.open([SAMPLED, (b"tracestate", b"not valid at all")])
    assert (trace.trace_id, trace.sampled, trace.root) == (CALLER, False, None)
    assert traces.open([]).trace_id is None
    traces.close()
    assert caplog.record_tuples == []


def test_the_service_names_itself_unless_the_operator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    assert resource("1.2.3").attributes["service.name"] == "twophase"
    assert resource("1.2.3").attributes["service.version"] == "1.2.3"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=chat-eu,region=eu")
    assert resource("1.2.3").attributes["service.name"] == "chat-eu"
    assert resource("1.2.3").attributes["region"] == "eu"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    assert resource("1.2.3").attributes["service.name"] == "chat"


def test_a_callers_broken_header_is_not_quoted_in_the_log(root_log: RootLog) -> None:
    quiet = Quiet()
    quiet.attach()
    try:
        Recorder().run(answered(), [SAMPLED, (b"tracestate", b"secret words, no pairs")])
    finally:
        quiet.detach()
    assert root_log.lines == []


def test_complaints_of_the_library_are_one_line_a_pause(root_log: RootLog) -> None:
    quiet = Quiet(pause_s=0.2)
    quiet.attach()
    library = logging.getLogger("opentelemetry.exporter.otlp")
    try:
        for _ in range(50):
            library.error("connection refused\nand a long story")
        time.sleep(0.25)
        library.error("connection refused")
    finally:
        quiet.detach()
    first, second = root_log.lines
    assert first == "traces do not get through; answers are not affected: connection refused"
    assert second == f"{first} (49 more like it since the last report)"
