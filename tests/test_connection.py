"""What a client may send around a body: bounded, told in the one error shape, and no harm to anybody else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from service.prompt.renderer import Renderer
from service.settings import Settings
from service.web.connection import LINGER_S, MOST_HEAD_BYTES, MOST_HEADERS, MOST_IN_A_ROW, MOST_URL_BYTES
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.wire import connect, replies, send, to_the_end

CHAT = "/v1/chat/completions"
CLOSE = b"Host: t\r\nConnection: close\r\n\r\n"
STARTED = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n".encode()


def whole(**fields: object) -> bytes:
    """A complete chat request."""
    content = json.dumps(body(**fields)).encode()
    return STARTED + b"Content-Length: %d\r\n\r\n" % len(content) + content


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    """One engine for all tests here."""
    return ScriptedEngine()


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    """One server for all tests here."""
    with running(Settings(body_timeout_s=2), engine, renderer) as server:
        yield server


@pytest.fixture(autouse=True)
def the_service_is_as_before(server: Running) -> Iterator[None]:
    """Whatever a test sends, nothing is left of it and the next caller is served."""
    yield
    until(lambda: server.life.in_flight == 0 and not server.server.server_state.tasks, within_s=8)
    with server.client() as client:
        assert client.post(CHAT, json=body()).status_code == 200


@pytest.mark.parametrize("length", [MOST_URL_BYTES + 1, 200_000, 2_000_000])
def test_a_url_that_is_too_long_is_414(server: Running, length: int) -> None:
    (reply,) = send(server, b"GET /" + b"x" * length + b" HTTP/1.1\r\n" + CLOSE)
    assert (reply.status, reply.code) == (414, "uri_too_long")


def test_a_url_of_the_longest_length_is_looked_at(server: Running) -> None:
    (reply,) = send(server, b"GET /" + b"x" * (MOST_URL_BYTES - 1) + b" HTTP/1.1\r\n" + CLOSE)
    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Long: " + b"x" * MOST_HEAD_BYTES + b"\r\n",
        b"X-Endless: " + b"x" * 40 * MOST_HEAD_BYTES,
        b"X" * 40 * MOST_HEAD_BYTES,
        b"".join(b"X-%d: 1\r\n" % at for at in range(MOST_HEADERS + 1)),
        b"".join(b"X-%d: %s\r\n" % (at, b"x" * 1000) for at in range(MOST_HEADERS)),
    ],
    ids=["long value", "endless value", "endless name", "many", "many and long"],
)
def test_too_much_of_headers_is_431(server: Running, headers: bytes) -> None:
    (reply,) = send(server, b"GET /livez HTTP/1.1\r\n" + headers + CLOSE)
    assert (reply.status, reply.code) == (431, "headers_too_large")


def test_as_many_headers_as_may_be_are_read(server: Running) -> None:
    head = b"".join(b"X-%d: 1\r\n" % at for at in range(MOST_HEADERS - 2))
    (reply,) = send(server, b"GET /livez HTTP/1.1\r\n" + head + CLOSE)
    assert reply.status == 200


@pytest.mark.parametrize(
    "rest",
    [
        b"0\r\nX-Trailer: " + b"x" * 40 * MOST_HEAD_BYTES,
        b"1;" + b"x" * 40 * MOST_HEAD_BYTES,
    ],
    ids=["trailer", "chunk extension"],
)
def test_what_has_no_end_after_the_head_is_431_too(server: Running, rest: bytes) -> None:
    (reply,) = send(server, STARTED + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
    assert (reply.status, reply.code) == (431, "headers_too_large")


def test_a_trailer_is_no_header(server: Running) -> None:
    content = json.dumps(body()).encode()
    chunked = b"%x\r\n%s\r\n0\r\nX-Request-Timeout-Ms: never\r\nX-Request-Id: mine\r\n\r\n" % (
        len(content),
        content,
    )
    head = b"Transfer-Encoding: chunked\r\nConnection: close\r\nTrailer: X-Request-Id\r\n\r\n"
    (reply,) = send(server, STARTED + head + chunked)
    assert reply.status == 200 and reply.headers["x-request-id"] != "mine"


@pytest.mark.parametrize(
    "broken",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"Content-Length: -5\r\n\r\nhello",
        b"Content-Length: 1e3\r\n\r\nhello",
        b"Content-Length: 99999999999999999999999\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello, and more\r\n0\r\n\r\n",
        b"X-Split: a\r\n folded\x00\r\n\r\n",
        b"X Bad: name\r\n\r\n",
    ],
)
def test_framing_that_can_be_read_in_two_ways_is_400(server: Running, broken: bytes) -> None:
    *_, reply = send(server, STARTED + broken)
    assert (reply.status, reply.code) == (400, "invalid_http")
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize(
    "line",
    [
        b"GET",
        b"GET /livez HTTP/9.9",
        b"get /livez HTTP/1.1",
        b"GET \xff\xfe HTTP/1.1",
        b"GET http://[::1 HTTP/1.1",
        b"CONNECT a:80 HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x00" * 64,
    ],
)
def test_a_request_line_that_is_none_is_400(server: Running, line: bytes) -> None:
    (reply,) = send(server, line + b"\r\n" + CLOSE)
    assert (reply.status, reply.code) == (400, "invalid_http")


ALIVE = b"GET /livez HTTP/1.1\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "head",
    [
        ALIVE,
        ALIVE + b"Host: a\r\nHost: a\r\n",
        ALIVE + b"Host: a\r\nX: 1\r\nHost: b\r\n",
        ALIVE + b"Host: a b\r\n",
        ALIVE + b"Host: a, b\r\nHost:\r\n",
        ALIVE + b"Host: user@a\r\n",
        ALIVE + b"Host: a/livez\r\n",
        ALIVE + b"Host: a:b\r\n",
        ALIVE + b"Host: [::1\r\n",
        ALIVE + b"Host: \xff\r\n",
        ALIVE.replace(b"1.1", b"1.0") + b"Host: a\r\nHost: b\r\n",
    ],
)
def test_a_request_has_one_host_or_is_400(server: Running, head: bytes) -> None:
    (reply,) = send(server, head + b"\r\n")
    assert (reply.status, reply.code) == (400, "invalid_http")
    assert "Host" in json.loads(reply.content)["error"]["message"]


@pytest.mark.parametrize(
    "host", [b"", b"t", b"chat.example.org:80", b"10.0.0.1:8000", b"[::1]:8000", b"a_b:", b"x%41.test"]
)
def test_whatever_host_it_names_it_is_served(server: Running, host: bytes) -> None:
    (reply,) = send(server, ALIVE + b"Host: " + host + b"\r\n\r\n")
    assert reply.status == 200


def test_http_1_0_knows_no_host(server: Running) -> None:
    (reply,) = send(server, b"GET /livez HTTP/1.0\r\n\r\n")
    assert reply.status == 200


def test_what_never_becomes_a_request_is_counted_once_as_any_other_is(
    server: Running, client: httpx.Client
) -> None:
    def counted() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("twophase_http_requests_total"))
        return {name: float(value) for name, _, value in found if 'status_class="4xx"' in name}

    before = counted()
    refused = [
        b"no HTTP\r\n\r\n",
        ALIVE + b"\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n" + CLOSE,
        b"GET / HTTP/1.1\r\nX: " + b"x" * 40 * MOST_HEAD_BYTES,
        STARTED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",  # this one has a route
    ]
    for raw in refused:
        assert len(send(server, raw)) == 1
    until(lambda: sum(counted().values()) == sum(before.values()) + len(refused))
    grown = {name: value - before[name] for name, value in counted().items() if value != before[name]}
    assert sorted(grown.values()) == [1, 4], grown


def test_requests_in_one_go_are_answered_in_turn(server: Running) -> None:
    last = b"GET /livez HTTP/1.1\r\n" + CLOSE
    first, second, third = send(server, whole() + b"GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n" + last)
    assert [first.status, second.status, third.status] == [200, 404, 200]


def test_of_a_row_of_requests_without_end_some_are_answered_and_the_connection_ends(
    server: Running, engine: ScriptedEngine
) -> None:
    engine.script("one ", 0.3, "two")
    answers = send(server, whole() + b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n" * 5000)
    assert [answer.status for answer in answers] == [200] * (1 + MOST_IN_A_ROW)
    assert answers[-1].headers["connection"] == "close"


def test_a_request_whose_body_is_still_coming_waits_for_its_turn(
    server: Running, engine: ScriptedEngine
) -> None:
    engine.script("one ", 0.3, "two")
    second = whole().replace(b"Host: t\r\n", b"Host: t\r\nConnection: close\r\n")
    with connect(server) as wire:
        wire.sendall(whole() + second[:-20])
        received = wire.recv(65_536)
        wire.sendall(second[-20:])
        first, last = replies(received + to_the_end(wire))
    assert first.status == last.status == 200


@pytest.mark.parametrize(
    "after",
    [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 40 * MOST_HEAD_BYTES],
    ids=["garbage", "endless head"],
)
def test_what_follows_a_whole_request_does_not_break_its_answer(
    server: Running, engine: ScriptedEngine, after: bytes
) -> None:
    engine.script("one ", 0.3, "two")
    (reply,) = send(server, whole() + after)
    assert reply.status == 200 and json.loads(reply.content)["choices"][0]["message"]["content"] == "one two"


def test_an_upgrade_is_not_made_and_the_connection_says_that_it_ends(server: Running) -> None:
    head = b"Host: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    (reply,) = send(server, b"GET /livez HTTP/1.1\r\n" + head)
    assert reply.status == 200 and reply.headers["connection"] == "close"


def test_who_goes_on_sending_after_a_refusal_is_not_kept(server: Running) -> None:
    with connect(server) as wire:
        wire.sendall(STARTED + b"Content-Length: 999999999\r\n\r\n")
        wire.settimeout(LINGER_S + 5)
        try:
            while True:
                wire.sendall(b" " * 1024)
                if b"}}" in (received := wire.recv(65_536)):
                    break
            while True:
                wire.sendall(b" " * 1024)
        except (BrokenPipeError, ConnectionResetError):
            pass
    (reply,) = replies(received)
    assert reply.status == 413


def test_who_leaves_at_any_byte_costs_nothing(server: Running) -> None:
    request = whole(stream=True, max_tokens=50)
    for at in range(0, len(request), 7):
        with connect(server) as wire:
            wire.sendall(request[:at])


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_who_leaves_ends_what_is_under_way_whatever_waits_behind_it(
    server: Running, engine: ScriptedEngine, behind: int
) -> None:
    engine.script("one ", 30.0, "never")
    started, aborted = len(engine.started), len(engine.aborted)
    with connect(server) as wire:
        wire.sendall(whole(max_tokens=50) * (1 + behind))
        until(lambda: len(engine.started) == started + 1)
    until(lambda: len(engine.aborted) == aborted + 1, within_s=2)
    until(lambda: server.life.in_flight == 0)
    assert len(engine.started) == started + 1, "nobody is there for what waited"


def test_who_stops_sending_has_left(server: Running, engine: ScriptedEngine) -> None:
    engine.script("one ", 30.0, "never")
    started, aborted = len(engine.started), len(engine.aborted)
    with connect(server) as wire:
        wire.sendall(whole(max_tokens=50))
        until(lambda: len(engine.started) == started + 1)
        wire.shutdown(1)  # half closed: what a client that is gone looks like, too
        assert to_the_end(wire) == b""
        until(lambda: len(engine.aborted) == aborted + 1, within_s=2)


@examples(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_that_went_wrong_on_the_way_are_never_a_server_error(
    server: Running, data: st.DataObject
) -> None:
    request = bytearray(whole().replace(b"Host: t\r\n", b"Host: t\r\nConnection: close\r\n"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(request) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"\x00", b":"]))
        request[at : at + data.draw(st.integers(0, 3))] = piece
    with connect(server) as wire:
        wire.sendall(request)
        wire.shutdown(1)  # nothing more comes
        received = to_the_end(wire)
    for reply in replies(received):
        assert reply.status < 500, reply
        assert reply.status == 200 or reply.code


def test_every_answer_forbids_guessing_and_running(client: httpx.Client) -> None:
    for path in ("/livez", "/v1/models", "/nothing", "/metrics", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-request-id"] and "server" not in headers


def test_an_error_nobody_expected_has_its_request_id_in_answer_and_log_and_keeps_its_words_to_the_log(
    client: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = RuntimeError("a secret of the inside")  # type: ignore[assignment]
    try:
        response = client.post(CHAT, json=body(), headers={"x-request-id": "mine"})
    finally:
        engine.refusal = None
    assert response.status_code == 500 and response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"] == "mine" and "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"
    (logged,) = [record for record in caplog.records if record.exc_info]
    assert "mine" in logged.getMessage() and "a secret of the inside" in str(logged.exc_info)
