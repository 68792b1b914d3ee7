"""The streamed answer, over a real socket: its envelope, its end, its errors, its readers."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import orjson
import pytest

from service.engine.protocol import Delta
from service.errors import EngineUnavailable
from service.settings import Settings
from tests.conftest import Chat, body
from tests.scripted import ScriptedEngine
from tests.serving import Running, until
from tests.sse import read


def test_every_chunk_has_the_envelope_and_exactly_one_finish(chat: Chat) -> None:
    response = chat(stream=True)
    events = read(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert events.data[-1] == "[DONE]" and events.data.count("[DONE]") == 1
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in events.chunks}) == 1
    assert all("finish_reason" in chunk["choices"][0] for chunk in events.chunks)
    assert events.finishes() == ["length"]
    assert events.text() == "word " * 4


def test_the_usage_chunk_has_the_envelope_of_its_stream(chat: Chat) -> None:
    chunks = read(chat(stream=True, stream_options={"include_usage": True})).objects
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 4
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_with_repeated_keys_is_read_in_one_way_throughout(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    said, meant = (json.dumps([{"role": "user", "content": text}]) for text in ("a " * 50, "b"))
    last = json.dumps(stream)
    raw = (
        f'{{"messages": {said}, "max_tokens": 1, "stream": {json.dumps(not stream)}, "messages": {meant}, '
        f'"stream": {last}, "stream_options": {{"include_usage": true}}, "max_tokens": 3}}'
    )
    if not stream:
        raw = raw.replace('"stream_options": {"include_usage": true}, ', "")
    answer = client.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    usage = read(answer).usage if stream else answer.json()["usage"]
    alone = client.post("/v1/chat/completions", json={"messages": json.loads(meant), "max_tokens": 3}).json()
    assert usage is not None
    assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"] and usage["completion_tokens"] == 3
    assert engine.started[-2].token_ids == engine.started[-1].token_ids


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8"])
def test_json_may_name_its_character_set(client: httpx.Client, media_type: str) -> None:
    content = json.dumps(body()).encode()
    answer = client.post("/v1/chat/completions", content=content, headers={"content-type": media_type})
    assert answer.status_code == 200


def test_two_answers_with_one_id_are_each_their_own_to_the_end(
    server: Running, engine: ScriptedEngine
) -> None:
    engine.script("one ", 0.5, "one")
    engine.script("two ", 0.5, "two")
    same = {"x-request-id": "same-1"}

    def ask(_: int) -> str:
        with server.client() as client:
            answer = client.post("/v1/chat/completions", json=body(max_tokens=9, stream=True), headers=same)
            return read(answer).text()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(ask, range(2))) == ["one one", "two two"]
    assert len({work.id for work in engine.started}) == 2


def test_role_comes_once_with_the_first_content(chat: Chat) -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in read(chat(stream=True)).chunks]
    assert deltas[0] == {"role": "assistant", "content": "word "}
    assert all("role" not in delta for delta in deltas[1:])


def test_a_delta_without_text_is_no_chunk(engine: ScriptedEngine, chat: Chat) -> None:
    engine.script("", "", "late", "")
    events = read(chat(stream=True, max_tokens=9))
    assert [chunk["choices"][0]["delta"] for chunk in events.chunks] == [
        {"role": "assistant", "content": "late"},
        {},
    ]
    assert events.finishes() == ["stop"]


def test_an_answer_without_any_text_still_has_role_and_finish(engine: ScriptedEngine, chat: Chat) -> None:
    engine.script("")
    events = read(chat(stream=True))
    assert events.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events.finishes() == ["stop"]


@pytest.mark.parametrize("said", [[], ["Done."]])
def test_the_end_token_is_counted_in_both_modes_and_never_shown(
    engine: ScriptedEngine, chat: Chat, said: list[str]
) -> None:
    for _ in range(2):
        engine.script(*said, Delta(0, "", [2], "stop"))
    whole = chat(max_tokens=64).json()
    events = read(chat(max_tokens=64, stream=True, stream_options={"include_usage": True}))
    [choice] = whole["choices"]
    assert choice["message"]["content"] == events.text() == "".join(said)
    assert [choice["finish_reason"]] == events.finishes() == ["stop"]
    assert whole["usage"] == events.usage and whole["usage"]["completion_tokens"] == len(said) + 1


@pytest.mark.parametrize("number", [10**40, -(10**99), 1e308])
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_nobody_knows_is_ignored_and_named_whatever_it_holds(
    chat: Chat, number: float, stream: bool
) -> None:
    answer = chat(stream=stream, plum=number)
    assert answer.status_code == 200 and answer.headers["x-ignored-params"] == "plum"


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
def test_no_usage_chunk_unless_asked_for(chat: Chat, options: object) -> None:
    events = read(chat(stream=True, stream_options=options))
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in events.objects)


def test_usage_is_the_last_chunk_and_the_same_as_without_a_stream(chat: Chat) -> None:
    events = read(chat(stream=True, stream_options={"include_usage": True}))
    assert events.objects[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in events.chunks)
    assert events.usage == chat().json()["usage"]
    assert events.objects[-1]["budget"] == chat().json()["budget"]


def test_running_usage_never_falls_and_ends_at_the_final_one(chat: Chat) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = read(chat(stream=True, stream_options=options))
    running = [chunk["usage"]["completion_tokens"] for chunk in events.objects]
    assert running == [1, 2, 3, 4, 4]


def test_n_streams_have_their_own_text_and_finish(chat: Chat) -> None:
    events = read(chat(stream=True, n=3))
    assert [events.text(index) for index in range(3)] == ["word " * 4] * 3
    assert [events.finishes(index) for index in range(3)] == [["length"]] * 3


def test_a_failure_in_mid_stream_is_one_error_event_without_finish(
    engine: ScriptedEngine, chat: Chat
) -> None:
    engine.script("half ", EngineUnavailable("The engine has stopped; try again later."))
    events = read(chat(stream=True))
    assert events.error is not None and events.error["code"] == "engine_unavailable"
    assert events.finishes() == [] and "[DONE]" not in events.data
    assert events.text() == "half "


def test_a_failure_before_any_answer_is_a_plain_error_without_a_stream(
    engine: ScriptedEngine, chat: Chat
) -> None:
    engine.script(EngineUnavailable("The engine has stopped; try again later."))
    response = chat()
    assert response.status_code == 503 and response.headers["retry-after"].isdigit()
    assert response.json()["error"]["code"] == "engine_unavailable"


def test_a_failure_before_the_first_token_of_a_stream_is_no_empty_success(
    engine: ScriptedEngine, chat: Chat, client: httpx.Client
) -> None:
    engine.script(0.1, EngineUnavailable("The engine has stopped; try again later."))
    events = read(chat(stream=True))
    assert events.error is not None and events.error["code"] == "engine_unavailable"
    assert len(events.data) == 1 and events.finishes() == [], "the error is all there is"
    failed = 'twophase_requests_total{outcome="engine_error"} 1.0'
    until(lambda: failed in client.get("/metrics").text)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_refused_before_the_status_line(
    engine: ScriptedEngine, chat: Chat, stream: bool
) -> None:
    engine.refusal = EngineUnavailable("The engine is not running; try again later.")
    response = chat(stream=stream)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(
    server: Running, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script("word ", 30.0, "never")
    with _post(server, body(stream=stream, max_tokens=50)) as wire:
        until(lambda: len(engine.started) == 1)
        time.sleep(0.1)
        wire.close()
        until(lambda: len(engine.aborted) == 1, within_s=1)
        until(lambda: server.life.in_flight == 0)


def test_a_silent_stream_gets_comment_lines(engine: ScriptedEngine, chat: Chat) -> None:
    engine.script(0.7, "late")
    events = read(chat(stream=True))
    assert len(events.comments) >= 2
    assert events.text() == "late"


def test_a_slow_reader_gets_every_byte(server: Running, engine: ScriptedEngine) -> None:
    engine.script(*["x" * 9000] * 900)
    with _post(server, body(stream=True, max_tokens=900), receive_bytes=65_536) as wire:
        time.sleep(0.5)  # eight million characters do not fit the sockets
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += wire.recv(1 << 20)
        assert received.count(b"x" * 9000) == 900
        assert b"[DONE]" in received[-40:]


def test_a_reader_that_stops_reading_is_given_up(server: Running, engine: ScriptedEngine) -> None:
    engine.script(*["x" * 9000] * 900, 60.0, "never")
    with _post(server, body(stream=True, max_tokens=950), receive_bytes=65_536) as wire:
        until(lambda: len(engine.aborted) == 1, within_s=5)
        wire.close()


def test_two_requests_with_one_id_do_not_touch_each_other(server: Running, engine: ScriptedEngine) -> None:
    engine.script("word ", 30.0, "never")
    with _post(server, body(stream=True), headers="X-Request-Id: same-1\r\n") as first:
        until(lambda: len(engine.started) == 1)
        with server.client() as other:
            answer = other.post("/v1/chat/completions", json=body(), headers={"x-request-id": "same-1"})
        first.close()
        assert answer.headers["x-request-id"] == "same-1"
        assert answer.json()["choices"][0]["message"]["content"] == "word " * 4
        assert len({work.id for work in engine.started}) == 2 and "same-1" not in engine.started[0].id
        until(lambda: engine.aborted == [engine.started[0].id])


def test_no_figure_is_ever_negative_whoever_leaves_under_whichever_id(
    server: Running, client: httpx.Client, engine: ScriptedEngine
) -> None:
    def figures() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("twophase_"))
        return {name: float(value) for name, _, value in found}

    engine.script("stays ", 1.0, "to the end")
    engine.script("leaves ", 30.0, "never")
    asked = body(stream=True, max_tokens=9, request_id="same-1")
    with _post(server, asked, headers="X-Request-Id: same-1\r\n") as stays:
        until(lambda: len(engine.started) == 1)
        with _post(server, asked, headers="X-Request-Id: same-1\r\n"):
            until(lambda: figures()['twophase_inflight{state="decode"}'] == 2)
            both = figures()
        until(lambda: engine.aborted == [engine.started[1].id])
        until(lambda: figures()['twophase_requests_total{outcome="client_abort"}'] == 1)
        one = figures()
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += stays.recv(1 << 16)
    assert b"to the end" in received and b"[DONE]" in received
    until(lambda: figures()['twophase_requests_total{outcome="ok"}'] == 1)
    none = figures()
    assert server.life.in_flight == 0
    for moment in (both, one, none):
        assert {name: value for name, value in moment.items() if value < 0} == {}
    held = [[value for name, value in at.items() if "inflight" in name] for at in (both, one, none)]
    assert [sum(values) for values in held] == [2, 1, 0]
    assert [at["twophase_slots_held"] for at in (both, one, none)] == [2, 1, 0]


def test_a_draining_service_refuses_new_requests_and_finishes_what_runs(
    server: Running, engine: ScriptedEngine
) -> None:
    engine.script("word ", 1.0, "end")
    with _post(server, body(stream=True)) as wire:
        until(lambda: len(engine.started) == 1)
        server.loop.call_soon_threadsafe(server.server.handle_exit, 15, None)
        with server.client() as other:
            until(lambda: other.get("/readyz").status_code == 503)
            refused = other.post("/v1/chat/completions", json=body())
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert refused.headers["retry-after"].isdigit()
        received = _rest(wire)
        assert b'"finish_reason":"stop"' in received and b"[DONE]" in received
        server.thread.join(10)
        assert not server.thread.is_alive()


def test_an_answer_longer_than_the_drain_limit_ends_with_an_error_event(
    server: Running, engine: ScriptedEngine, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script("word ", 60.0, "never")
    with _post(server, body(stream=True)) as wire:
        until(lambda: len(engine.started) == 1)
        server.loop.call_soon_threadsafe(server.server.handle_exit, 15, None)
        received = _rest(wire)
        assert b'"code":"draining"' in received and b"[DONE]" not in received
        server.thread.join(settings.drain_s + 10)
        assert not server.thread.is_alive() and len(engine.aborted) == 1
    assert "graceful shutdown exceeded" not in caplog.text, "it ends at the limit, not some time after"


def _post(
    server: Running, request: dict[str, object], *, headers: str = "", receive_bytes: int = 0
) -> socket.socket:
    """Send a request on a socket of its own; with `receive_bytes`, one that holds little unread."""
    wire = socket.socket()
    if receive_bytes:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    wire.settimeout(20)
    wire.connect(("127.0.0.1", server.port))
    content = orjson.dumps(request)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n{headers}"
    wire.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return wire


def _rest(wire: socket.socket) -> bytes:
    received = bytearray()
    while data := wire.recv(1 << 16):
        received += data
    return bytes(received)
