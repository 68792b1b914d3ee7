"""Spans on their way out: to a real receiver, to a silent one, to none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from service.errors import EngineUnavailable, InvalidValue, StartError
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.telemetry.export import exporter_from_environment, wanted
from service.telemetry.outcome import outcome
from service.telemetry.phases import derive
from service.telemetry.post import SENDER
from service.telemetry.record import CHAT_ROUTE, RequestRecord
from service.telemetry.timeline import timeline
from service.telemetry.traces import Traces, traces_from_environment
from service.telemetry.tree import tree
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import running, until
from tests.sse import read
from tests.telemetry.collector import black_hole, closed_port, grpc_collector
from tests.telemetry.conftest import RootLog
from tests.telemetry.records import abandoned, answered, choice, record, refused, waiting_choice


def run(traces: Traces, made: RequestRecord, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    trace = traces.open(headers)
    times = timeline(made, time.monotonic())
    traces.finish(trace, tree(made, times, derive(made, times), outcome(made)), made.wall_offset_s)


def test_nothing_is_exported_unless_asked_for() -> None:
    assert exporter_from_environment() is None and not wanted()


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
    assert exporter_from_environment() is None and not wanted()


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
async def test_a_variable_that_cannot_be_followed_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=r"OTEL_"):
        await traces_from_environment("1").start()


async def test_a_real_receiver_gets_every_tree_with_the_right_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with grpc_collector() as (collector, port):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
        traces = traces_from_environment("1.2.3")
        await traces.start()
        caller = "11112222333344445555666677778888", "aaaabbbbccccdddd"
        run(traces, answered(), ((b"traceparent", f"00-{caller[0]}-{caller[1]}-01".encode()),))
        run(traces, refused(InvalidValue("no")))
        run(traces, abandoned(waiting_choice()))
        run(traces, record(choice(finish=None), error=EngineUnavailable("x"), last_byte=2, closed=2))
        await traces.aclose(10)
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
async def test_a_collector_that_does_not_answer_costs_the_caller_nothing(
    monkeypatch: pytest.MonkeyPatch, root_log: RootLog, protocol: str, kind: str
) -> None:
    with black_hole() as silent:
        port = silent if kind == "black hole" else closed_port()
        export_to(monkeypatch, port, protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
        traces = traces_from_environment("1")
        await traces.start()
        slowest = 0.0
        for _ in range(300):
            began = time.perf_counter()
            run(traces, answered())
            slowest = max(slowest, time.perf_counter() - began)
            await asyncio.sleep(0.005)
        began = time.monotonic()
        await traces.aclose(0.5)
        assert time.monotonic() - began < 2
    ledger = traces.ledger
    assert slowest < 0.9, "finishing a trace never waits for the network"
    assert ledger.dropped > 0 and ledger.exported == 0
    assert ledger.handed + ledger.dropped == 300 * 7
    assert ledger.handed % 7 == 0, "a tree is dropped as a whole"
    assert ledger.pending <= 100
    assert len(root_log.lines) <= 1, root_log.lines
    assert all("answers are not affected" in line for line in root_log.lines)


@pytest.mark.parametrize(("kind", "protocol"), [("closed port", "grpc"), ("black hole", "http/protobuf")])
def test_streams_are_whole_and_the_log_is_quiet_while_the_collector_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    root_log: RootLog,
    settings: Settings,
    engine: ScriptedEngine,
    renderer: Renderer,
    kind: str,
    protocol: str,
) -> None:
    with black_hole() as silent, ThreadPoolExecutor(10) as pool:
        export_to(monkeypatch, silent if kind == "black hole" else closed_port(), protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "70")  # ten trees
        with running(settings, engine, renderer) as server, server.client() as client:
            asked = [pool.submit(client.post, CHAT_ROUTE, json=body(stream=True)) for _ in range(50)]
            ended = [read(one.result()) for one in asked]
            until(lambda: 'outcome="ok"} 50.0' in client.get("/metrics").text)
            page = client.get("/metrics").text
            ledger = server.parts.observer.traces.ledger
    assert all(events.data[-1] == "[DONE]" and events.finishes() == ["length"] for events in ended)
    assert 'twophase_spans_total{result="exported"} 0.0' in page
    assert ledger.handed + ledger.dropped == 50 * 7 and ledger.dropped > 0
    assert len(root_log.lines) <= 1, root_log.lines


async def test_a_sender_that_ends_is_started_again_and_its_spans_are_counted_as_failed(
    monkeypatch: pytest.MonkeyPatch, root_log: RootLog
) -> None:
    monkeypatch.setattr("service.telemetry.post.AGAIN_S", 0.1)
    with grpc_collector() as (collector, port):
        export_to(monkeypatch, port, "grpc")
        traces = traces_from_environment("1")
        await traces.start()
        [first] = senders()
        run(traces, answered())
        first.kill()
        ledger = traces.ledger
        for _ in range(200):
            if ledger.exported:
                break
            run(traces, answered())  # while nobody is there to read it, it is left out
            await asyncio.sleep(0.1)
        assert len(senders()) == 1 and senders() != [first]
        await traces.aclose(10)
        assert senders() == []
        assert ledger.failed in (7, 14), "what was on its way when it ended"
        assert ledger.pending == 0 and ledger.dropped > 0
        assert len(collector.wait_for(ledger.exported)) == ledger.exported
    assert root_log.lines == ["the program that sends traces has ended and is started again"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_silent_collector_does_not_hold_up_the_exit(protocol: str) -> None:
    program = """
        print(f"closing at {time.time()}", flush=True)
        await traces.aclose(0.5)
    """
    with black_hole() as port:
        done, ended = in_a_process(program, port, protocol)
    assert done.returncode == 0, done.stderr
    closing = re.search(r"closing at ([\d.]+)", done.stdout)
    assert closing is not None
    assert ended - float(closing[1]) < 8, "less than the exporter's own ten seconds"
    assert len(done.stderr.splitlines()) <= 2, done.stderr


def test_the_last_spans_of_a_service_that_is_killed_are_sent_and_no_sender_stays() -> None:
    program = """
        import psutil
        [sender] = psutil.Process().children()
        print(sender.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with grpc_collector() as (collector, port):
        done, _ = in_a_process(program, port, "grpc")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert len(collector.wait_for(700)) == 700
        gone_by = time.monotonic() + 10
        while psutil.pid_exists(int(done.stdout)) and time.monotonic() < gone_by:
            time.sleep(0.05)
        assert not psutil.pid_exists(int(done.stdout))


def export_to(monkeypatch: pytest.MonkeyPatch, port: int, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)


def senders() -> list[psutil.Process]:
    """The programs that send for this process."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess):  # one that has ended has no command line
            found += [one] if SENDER in one.cmdline() else []
    return found


def in_a_process(last: str, port: int, protocol: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A program that makes a hundred traces and then does what is `last`; and when it ended."""
    program = f"""
    import asyncio, logging, os, signal, time
    from service.telemetry.traces import traces_from_environment
    from tests.telemetry.records import answered
    from tests.telemetry.test_export import run

    async def main():
        traces = traces_from_environment("1")
        await traces.start()
        for _ in range(100):
            run(traces, answered())
        await asyncio.sleep(0.5)
        {last.strip()}

    logging.basicConfig()
    asyncio.run(main())
    """
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **variables, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done, time.time()
