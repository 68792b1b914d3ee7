"""What stands in Serve's proxy, before apps that end as that does when a replica is lost. Without Ray."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray.edge import SERVES_HEADERS, SESSION, Finished, Marked
from deploy.ray.prefix import marks
from service.admission.keys import new_key
from service.admission.tenants import Tenants
from service.web.listen import listening_socket
from tests.serving import until

PATH = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "sea " * 400}]}
EVENTS = [(b"content-type", b"text/event-stream")]
WORDS = [(b"content-type", b"text/plain; charset=utf-8")]
JSON = [(b"content-type", b"application/json"), (b"x-request-id", b"mine"), (b"x-request-id", b"serve's")]


def start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def sends(*messages: Message) -> ASGIApp:
    """An app that says so much, and ends."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        for message in messages:
            await send(message)

    return app


@contextmanager
def served(app: ASGIApp) -> Iterator[httpx.Client]:
    address = listening_socket("127.0.0.1", 0)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address]})
    thread.start()
    try:
        until(lambda: server.started)
        with httpx.Client(base_url=f"http://127.0.0.1:{address.getsockname()[1]}", timeout=10) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(10)


def post(app: ASGIApp, path: str = PATH) -> httpx.Response:
    with served(Finished(app)) as client:
        return client.post(path, json=BODY)


def test_a_cut_stream_ends_with_an_error_event() -> None:
    response = post(sends(start(200, EVENTS), piece(b"data: {}\n\n")))
    first, last = response.text.strip().split("\n\n")
    assert first == "data: {}"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"


def test_a_cut_stream_of_the_messages_api_ends_in_its_own_words() -> None:
    response = post(sends(start(200, EVENTS), piece(b"event: ping\ndata: {}\n\n")), "/v1/messages")
    kind, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["type"] == "error"


def test_a_whole_stream_gets_nothing_more() -> None:
    response = post(sends(start(200, EVENTS), piece(b"data: {}\n\n"), piece(b"data: [DONE]\n\n", more=False)))
    assert response.text == "data: {}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("app", [sends(), sends(start(503, WORDS), piece(b"No replicas", more=False))])
def test_no_answer_is_a_503_in_our_shape_that_says_when_to_come_back(app: ASGIApp) -> None:
    response = post(app)
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json()["error"]["code"] in ("engine_unavailable", "not_ready")


def test_a_whole_answer_that_is_cut_is_not_taken_for_whole() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        post(sends(start(200, [*JSON, (b"content-length", b"99")]), piece(b"{")))


def test_the_app_s_errors_pass_as_they_are_with_one_request_id() -> None:
    response = post(sends(start(429, JSON), piece(b"{}", more=False)))
    assert (response.status_code, response.text, response.headers["x-request-id"]) == (429, "{}", "mine")


def test_serve_s_own_paths_are_left_alone() -> None:
    response = post(sends(start(503, WORDS), piece(b"draining", more=False)), "/-/healthz")
    assert (response.status_code, response.text) == (503, "draining")


Seen = dict[str, object]


@pytest.fixture
def seen() -> Seen:
    return {}


@pytest.fixture
def marked(seen: Seen) -> Iterator[httpx.Client]:
    """A client of an app that writes down what comes through."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        seen.update(body=body, headers={name.decode(): value.decode() for name, value in scope["headers"]})
        await send(start(200, JSON))
        await send(piece(b"{}", more=False))

    with served(Marked(app, Tenants())) as client:
        yield client


def test_marks_go_with_a_request_whose_body_is_as_it_was(marked: httpx.Client, seen: Seen) -> None:
    marked.post(PATH, json=BODY, headers={"x-session-id": "mine"})
    assert json.loads(seen["body"]) == BODY  # type: ignore[arg-type]
    assert seen["headers"][SESSION].split(",") == marks("anonymous", BODY, "mine")  # type: ignore[index]


def test_a_group_is_the_tenant_s_and_a_key_nobody_knows_is_a_group_of_its_own(tmp_path: Path) -> None:
    made = new_key("acme")
    file = tmp_path / "tenants.toml"
    file.write_text(made.table + 'cache_group = "all"\n')
    group = Marked(sends(), Tenants(file))._group
    known, one, other = (key.encode() for key in (made.key, "one", "other"))
    assert group({"headers": [(b"authorization", b"Bearer " + known)]}) == "all"
    assert group({"headers": [(b"x-api-key", known)]}) == "all"
    strangers = [group({"headers": [(b"authorization", b"Bearer " + key)]}) for key in (one, other)]
    assert len({"all", *strangers}) == 3


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b'"text"', b'{"messages": 5}', b'{"messages": ' + b"[" * 5000]
)
def test_what_cannot_be_read_goes_on_unmarked(marked: httpx.Client, seen: Seen, raw: bytes) -> None:
    marked.post(PATH, content=raw, headers={"content-type": "application/json"})
    assert seen["body"] == raw
    assert seen["headers"][SESSION] == ""  # type: ignore[index]


def test_a_large_body_goes_on_whole(marked: httpx.Client, seen: Seen) -> None:
    raw = json.dumps({**BODY, "prompt": "x" * 2**21}).encode()

    def chunked() -> Iterator[bytes]:
        yield from (raw[at : at + 70_000] for at in range(0, len(raw), 70_000))

    marked.post(PATH, content=chunked(), headers={"content-type": "application/json"})
    assert seen["body"] == raw


def test_a_slow_body_goes_on_before_it_is_whole(marked: httpx.Client, seen: Seen) -> None:
    gate = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b'{"messages":'
        gate.wait(1.5)
        yield b" []}"

    marked.post(PATH, content=slow(), headers={"content-type": "application/json"})
    assert seen["body"] == b'{"messages": []}'
    assert seen["headers"][SESSION] == ""  # type: ignore[index]


def test_callers_do_not_steer_serve(marked: httpx.Client, seen: Seen) -> None:
    marked.post(PATH, json=BODY, headers=dict.fromkeys(SERVES_HEADERS, "1"))
    assert not set(SERVES_HEADERS) & set(seen["headers"])  # type: ignore[call-overload]
