"""Start and end of the service: what callers are told before it is ready, and what ends it."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.engine.protocol import EngineStartError
from service.errors import EngineUnavailable
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.wire import connect, replies, to_the_end

CHAT = "/v1/chat/completions"


def test_a_starting_service_is_alive_and_not_ready(settings: Settings, renderer: Renderer) -> None:
    engine = ScriptedEngine()
    engine.start_s = 1.5
    with running(settings, engine, renderer, wait=False) as server, server.client() as client:
        until(lambda: _answers(client))
        assert client.get("/livez").status_code == 200
        for response in (client.get("/readyz"), client.post("/v1/chat/completions", json=body())):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "not_ready"
            assert response.headers["retry-after"].isdigit()
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/chat/completions", json=body()).status_code == 200


def test_a_start_that_fails_ends_the_server_and_keeps_the_reason(
    settings: Settings, renderer: Renderer
) -> None:
    engine = ScriptedEngine()
    engine.start_failure = EngineStartError("the engine did not start: no memory")
    with running(settings, engine, renderer, wait=False) as server:
        server.thread.join(10)
        assert not server.thread.is_alive()
        assert server.server.failure is engine.start_failure


def test_a_dead_engine_ends_the_server_so_that_a_supervisor_starts_it_again(
    server: Running, engine: ScriptedEngine
) -> None:
    engine.dead = True
    server.thread.join(10)
    assert not server.thread.is_alive()
    assert isinstance(server.server.failure, EngineUnavailable)


def test_health_is_readiness_and_version_says_what_runs(client: httpx.Client) -> None:
    assert client.get("/health").json() == client.get("/readyz").json() == {"status": "ok"}
    assert client.get("/version").json()["vllm"] == "scripted"


def test_a_clean_short_request_id_is_echoed_and_any_other_replaced(client: httpx.Client) -> None:
    assert client.get("/livez", headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for given in ("x" * 129, "a b", "a;b", ""):
        echoed = client.get("/livez", headers={"x-request-id": given}).headers["x-request-id"]
        assert echoed != given and echoed.startswith("req-")


@pytest.mark.parametrize("signals", [1, 2])
def test_an_idle_server_ends_at_once(server: Running, signals: int) -> None:
    began = time.monotonic()
    for _ in range(signals):
        server.loop.call_soon_threadsafe(server.server.handle_exit, 2, None)
    server.thread.join(10)
    assert not server.thread.is_alive() and time.monotonic() - began < 5


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_an_engine_that_stands_still_is_seen_and_forgiven_when_it_moves(renderer: Renderer) -> None:
    engine = ScriptedEngine()
    with (
        running(Settings(hang_s=0.5), engine, renderer) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        engine.script("word ", 60.0, "never")
        running_answer = pool.submit(client.post, "/v1/chat/completions", json=body())
        until(lambda: client.get("/readyz").status_code == 200)
        engine.frozen = True
        ended = running_answer.result(10)
        assert ended.status_code == 503 and ended.json()["error"]["code"] == "engine_unavailable"
        for probe in ("/readyz", "/health"):
            assert client.get(probe).json()["error"]["code"] == "engine_unavailable"
        assert client.post("/v1/chat/completions", json=body()).status_code == 503
        assert client.get("/livez").status_code == 200
        engine.frozen = False
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/chat/completions", json=body()).status_code == 200
        assert server.life.in_flight == 0


def test_an_engine_that_dies_after_it_stood_still_ends_the_service(renderer: Renderer) -> None:
    engine = ScriptedEngine()
    with running(Settings(hang_s=0.5), engine, renderer) as server, server.client() as client:
        engine.frozen = True
        until(lambda: client.get("/readyz").status_code == 503)
        engine.dead = True
        server.thread.join(10)
        assert not server.thread.is_alive() and isinstance(server.server.failure, EngineUnavailable)


def test_what_was_still_prepared_when_the_engine_stood_still_is_refused(renderer: Renderer) -> None:
    engine = ScriptedEngine()
    engine.trial_s = 2.0
    with (
        running(Settings(hang_s=0.5), engine, renderer) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(client.post, CHAT, json=body(response_format={"type": "json_object"}))
        engine.frozen = True
        answer = asked.result(10)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_unavailable"
        assert engine.started == []


def test_a_deadline_holds_while_a_schema_is_tried(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.trial_s = 20.0
    began = time.monotonic()
    headers = {"x-request-timeout-ms": "300"}
    answer = client.post(CHAT, json=body(response_format={"type": "json_object"}), headers=headers)
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"
    assert time.monotonic() - began < 10


def test_a_second_signal_tells_of_what_it_ends(
    server: Running, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine.script("word ", 60.0)
    with server.client() as client, client.stream("POST", CHAT, json=body(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        for _ in range(2):
            server.loop.call_soon_threadsafe(server.server.handle_exit, 2, None)
        server.thread.join(10)
    assert not server.thread.is_alive()
    told = [str(record.msg) for record in caplog.records if record.name == "twophase.request"]
    assert len(told) == 1 and "output_tokens=1" in told[0]


SCHEMA: dict[str, object] = {"response_format": {"type": "json_object"}}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
UNDER_WAY: dict[str, tuple[str, dict[str, object]]] = {
    "a whole answer": (CHAT, {}),
    "one that is prepared": (CHAT, SCHEMA),
    "a stream that is prepared": (CHAT, {"stream": True, **SCHEMA}),
    "what it would cost": (f"{CHAT}/explain", SCHEMA),
    "a message": ("/v1/messages", {"output_config": {"format": FORMAT}}),
}


@pytest.mark.parametrize(("route", "fields"), UNDER_WAY.values(), ids=UNDER_WAY)
def test_what_has_no_response_at_the_drain_limit_is_refused_in_its_own_shape(
    renderer: Renderer, caplog: pytest.LogCaptureFixture, route: str, fields: dict[str, object]
) -> None:
    engine = ScriptedEngine()
    engine.trial_s = 60.0
    engine.script("word ", 60.0, "never")
    with (
        running(Settings(drain_s=0.5), engine, renderer) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(client.post, route, json=body(**fields))
        until(lambda: server.life.in_flight == 1)
        server.loop.call_soon_threadsafe(server.server.handle_exit, 15, None)
        answer = asked.result(20)
        server.thread.join(20)
        page = server.parts.observer.metrics.render()[0].decode()
    assert answer.status_code == 503 and answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"].isdigit() and answer.headers["x-request-id"]
    assert "shutting down" in answer.json()["error"]["message"]
    assert "finish_reason" not in answer.text
    counted = 0.0 if route.endswith("explain") else 1.0
    assert f'twophase_requests_total{{outcome="draining"}} {counted}' in page
    assert server.life.in_flight == 0 and server.parts.admission.held == 0
    assert "Exception in ASGI application" not in caplog.text


@pytest.mark.parametrize("others", [0, 1])
def test_who_is_still_sending_a_body_at_the_end_is_told_so(
    renderer: Renderer, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    engine = ScriptedEngine()
    engine.script(60.0, "never")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    with (
        running(Settings(drain_s=0.5), engine, renderer) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
        connect(server) as wire,
    ):
        for _ in range(others):
            pool.submit(client.post, CHAT, json=body())
        wire.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        until(lambda: len(server.parts.observer.metrics.inflight) == 1 + others)
        until(lambda: server.life.in_flight == others)
        server.loop.call_soon_threadsafe(server.server.handle_exit, 15, None)
        [reply] = replies(to_the_end(wire))
        server.thread.join(20)
    assert (reply.status, reply.code) == (503, "draining") and reply.headers["retry-after"].isdigit()
    assert b"could not finish" in reply.content
    assert "Exception in ASGI application" not in caplog.text


def test_an_idle_engine_that_answers_is_never_taken_for_hung(renderer: Renderer) -> None:
    with running(Settings(hang_s=0.3), ScriptedEngine(), renderer) as server, server.client() as client:
        for _ in range(15):
            assert client.get("/readyz").status_code == 200
            time.sleep(0.1)


def test_a_signal_during_the_start_ends_it(settings: Settings, renderer: Renderer) -> None:
    engine = ScriptedEngine()
    engine.start_s = 60
    with running(settings, engine, renderer, wait=False) as server:
        server.loop.call_soon_threadsafe(server.server.handle_exit, 15, None)
        server.thread.join(10)
        assert not server.thread.is_alive()
