"""Spans on their way out: to a real receiver, to a silent one, to none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

from service.errors import EngineUnavailable, InvalidValue, StartError
from service.telemetry.export import exporter_from_environment
from service.telemetry.outcome import outcome
from service.telemetry.phases import derive
from service.telemetry.record import RequestRecord
from service.telemetry.timeline import timeline
from service.telemetry.traces import Traces, traces_from_environment
from service.telemetry.tree import tree
from tests.telemetry.collector import black_hole, closed_port, grpc_collector
from tests.telemetry.conftest import RootLog
from tests.telemetry.records import abandoned, answered, choice, record, refused, waiting_choice


def run(traces: Traces, made: RequestRecord, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    trace = traces.open(headers)
    times = timeline(made, time.monotonic())
    traces.finish(trace, tree(made, times, derive(made, times), outcome(made)), made.wall_offset_s)


def test_nothing_is_exported_unless_asked_for() -> None:
    assert exporter_from_environment() is None


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
    ],
)
def test_what_is_switched_off_stays_off(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert exporter_from_environment() is None


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, "http"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4317"}, "grpc"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http",
        ),
    ],
)
def test_the_protocol_is_the_one_named_else_the_ports(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], protocol: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    exporter = exporter_from_environment()
    assert exporter is not None
    exporter.shutdown()
    assert f".{protocol}." in type(exporter).__module__


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "many"},
    ],
)
def test_a_variable_that_cannot_be_followed_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=r"OTEL_"):
        traces_from_environment("1")


def test_a_real_receiver_gets_every_tree_with_the_right_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_collector() as (collector, port):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
        traces = traces_from_environment("1.2.3")
        caller = "11112222333344445555666677778888", "aaaabbbbccccdddd"
        run(traces, answered(), ((b"traceparent", f"00-{caller[0]}-{caller[1]}-01".encode()),))
        run(traces, refused(InvalidValue("no")))
        run(traces, abandoned(waiting_choice()))
        run(traces, record(choice(finish=None), error=EngineUnavailable("x"), last_byte=2, closed=2))
        traces.close()
        spans = collector.wait_for(7 + 3 + 5 + 7)

    assert len(spans) == 22 and traces.ledger.exported == 22
    assert collector.metadata["x-key"] == "abc"
    assert collector.resources[0]["service.name"] == "chat"
    trees = Counter(span.trace_id.hex() for span in spans)
    assert sorted(trees.values()) == [3, 5, 7, 7]
    ours = {span.name: span for span in spans if span.trace_id.hex() == caller[0]}
    root, chat = ours["POST /v1/chat/completions"], ours["chat tiny"]
    assert root.parent_span_id.hex() == caller[1]
    assert chat.parent_span_id == root.span_id
    for phase in ("render", "admission", "queue", "prefill", "decode"):
        assert ours[phase].parent_span_id == chat.span_id
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("kind", ["closed port", "black hole"])
def test_a_collector_that_does_not_answer_costs_the_caller_nothing(
    monkeypatch: pytest.MonkeyPatch, root_log: RootLog, protocol: str, kind: str
) -> None:
    with black_hole() as silent:
        port = silent if kind == "black hole" else closed_port()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
        traces = traces_from_environment("1")
        slowest = 0.0
        for _ in range(300):
            began = time.perf_counter()
            run(traces, answered())
            slowest = max(slowest, time.perf_counter() - began)
            time.sleep(0.005)
        began = time.monotonic()
        traces.close(0.5)
        assert time.monotonic() - began < 2
    ledger = traces.ledger
    assert slowest < 0.9, "finishing a trace never waits for the network"
    assert ledger.dropped > 0 and ledger.exported == 0
    assert ledger.handed + ledger.dropped == 300 * 7
    assert ledger.pending <= 100
    assert len(root_log.lines) <= 1, root_log.lines
    assert all("answers are not affected" in line for line in root_log.lines)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_silent_collector_does_not_hold_up_the_exit(protocol: str) -> None:
    program = textwrap.dedent(
        """
        import logging, time
        from service.telemetry.traces import traces_from_environment
        from tests.telemetry.records import answered
        from tests.telemetry.test_export import run
        logging.basicConfig()
        traces = traces_from_environment("1")
        for _ in range(100):
            run(traces, answered())
        time.sleep(0.5)
        print(f"closing at {time.time()}")
        traces.close(0.5)
        """
    )
    with black_hole() as port:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **variables, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            timeout=60,
        )
        ended = time.time()
    assert done.returncode == 0, done.stderr
    closing = re.search(r"closing at ([\d.]+)", done.stdout)
    assert closing is not None
    assert ended - float(closing[1]) < 8, "less than the exporter's own ten seconds"
    assert len(done.stderr.splitlines()) <= 2, done.stderr
