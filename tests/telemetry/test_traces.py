from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from service.errors import EngineUnavailable, InvalidValue
from service.telemetry.outcome import outcome
from service.telemetry.phases import derive
from service.telemetry.post import Ledger
from service.telemetry.quiet import Quiet, hush_parsers
from service.telemetry.record import RequestRecord
from service.telemetry.spans import Spans, resource
from service.telemetry.timeline import timeline
from service.telemetry.traces import Trace, Traces
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


class Memory:
    """Spans are made as the sender makes them, and kept."""

    def __init__(self, ids: IdGenerator, full: bool) -> None:
        self.ledger = Ledger()
        self._full = full
        self.made: list[ReadableSpan] = []
        self._spans = Spans(resource("1.2.3"), "1.2.3", ids)

    async def start(self) -> None:
        """Always ready."""

    def send(self, tree: bytes, spans: int) -> bool:
        if self._full:
            return False
        before = len(self.made)
        self.made += self._spans.of(orjson.loads(tree))
        assert len(self.made) == before + spans and tree.count(b"\n") == 1 and tree.endswith(b"\n")
        return True

    async def aclose(self, limit_s: float) -> None:
        """Nothing is left."""


class Recorder:
    """Traces that end in memory, unless that is `full`."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, *, full: bool = False) -> None:
        ids = CountingIds()
        provider = TracerProvider(sampler=ParentBased(sampler), id_generator=ids, shutdown_on_exit=False)
        self.way = Memory(ids, full)
        self.traces = Traces(provider, self.way)

    def run(self, made: RequestRecord, headers: Headers = ()) -> Trace:
        """Open and finish the trace of a record."""
        trace = self.traces.open(headers)
        times = timeline(made, time.monotonic())
        spans = tree(made, times, derive(made, times), outcome(made))
        self.traces.finish(trace, spans, made.wall_offset_s)
        return trace

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.way.made}


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


async def test_without_an_exporter_the_callers_trace_id_is_known_and_nothing_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traces = Traces()
    trace = traces.open([SAMPLED, (b"tracestate", b"not valid at all")])
    assert (trace.trace_id, trace.sampled, trace.root) == (CALLER, False, None)
    assert traces.open([]).trace_id is None
    await traces.start()
    await traces.aclose()
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
    hush_parsers()
    Recorder().run(answered(), [SAMPLED, (b"tracestate", b"secret words, no pairs")])
    assert root_log.lines == []


def test_complaints_of_the_library_are_one_line_a_pause(root_log: RootLog) -> None:
    said: list[str] = []
    quiet = Quiet(said.append, pause_s=0.2)
    library = logging.getLogger("opentelemetry")
    quiet.attach()
    try:
        for _ in range(50):
            library.getChild("exporter.otlp").error("connection refused\nand a long story")
        time.sleep(0.25)
        library.getChild("exporter.otlp").error("connection refused")
    finally:
        library.removeHandler(quiet)
        library.propagate = True
    assert said == ["connection refused", "connection refused (49 more like it since the last report)"]
    assert root_log.lines == []
