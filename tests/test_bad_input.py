"""What callers send wrongly: each gets its documented status in the one error shape, before any stream."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import Chat, body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
LEAKS = re.compile(r"Traceback|\.py\b|pydantic|starlette|fastapi|jinja2|vllm|0x[0-9a-f]{6}|Error\b")


OBJECT = {"type": "json_object"}
ASKED = {"role": "user", "content": "How is the weather?"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "fine"}


def tool(**fields: object) -> dict[str, object]:
    """A tool called f."""
    return {"type": "function", "function": {"name": "f", **fields}}


TOOL = tool()


def named(name: str) -> dict[str, object]:
    """The wish for a call of one tool."""
    return {"type": "function", "function": {"name": name}}


def called(id: str, arguments: str = "{}") -> dict[str, object]:
    """An assistant's turn with a call."""
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def no_constant(name: str) -> None:
    """What Python takes for JSON and the standard does not."""
    pytest.fail(f"{name} is no JSON")


def refused(response: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """The error object, after checking everything that all of them share."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = json.loads(response.content, parse_constant=no_constant)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and not LEAKS.search(error["message"]), error["message"]
    assert error["code"] == code
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["param"] == param
    return dict(error)


@pytest.fixture(scope="module")
def settings() -> Settings:
    """One set for all tests here, with short times."""
    return Settings(body_timeout_s=1)


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    """One engine for all tests here: none of them reaches it."""
    return ScriptedEngine()


@pytest.fixture(scope="module")
def server(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    """One server for all tests here."""
    with running(settings, engine, renderer) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_reaches_the_engine(engine: ScriptedEngine) -> Iterator[None]:
    """A refused request costs the engine nothing."""
    yield
    assert engine.started == []


@pytest.mark.parametrize(
    "raw",
    [
        b"{broken",
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe\x80\x81",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        '{"messages": []}'.encode("utf-16"),
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_object(client: httpx.Client, raw: bytes) -> None:
    refused(client.post(CHAT, content=raw, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 2**64}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": True}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 2**63 - 1, "n": 2}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 100_000}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": "x" * 129}, "stop[0]"),
        ({"stop_token_ids": [49_152]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"allowed_token_ids": [260], "bad_words": ["the"]}, "bad_words"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {" 1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"tools": "f"}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("f")}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": named("g")}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": OBJECT}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"response_format": OBJECT, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": OBJECT}, "structured_outputs"),
        ({"response_format": OBJECT, "min_tokens": 2}, "min_tokens"),
        ({"response_format": OBJECT, "bad_words": ["x"]}, "bad_words"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a\0b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "no JSON"}}, "structured_outputs.json"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"messages": [ASKED, RESULT]}, "messages[1].tool_call_id"),
        ({"messages": [ASKED, called("other"), RESULT]}, "messages[2].tool_call_id"),
        (
            {"messages": [ASKED, called("c", "not JSON"), RESULT]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [ASKED, called("c", "[1]"), RESULT]}, "messages[1].tool_calls[0].function.arguments"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    chat: Chat, fields: dict[str, object], param: str, stream: bool
) -> None:
    request = {"stream": stream, **fields}
    if any(isinstance(value, int) and value > 2**64 for value in fields.values()):
        pytest.skip("the next test sends it raw: this client cannot write it")
    refused(chat(**request), 400, "invalid_value", param)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "param"),
    [
        *((name, name) for name in ("temperature", "top_p", "min_p", "presence_penalty")),
        *((name, name) for name in ("frequency_penalty", "repetition_penalty")),
        ("logit_bias", "logit_bias.5"),
    ],
)
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"'])
def test_a_number_that_is_not_finite_is_named(
    client: httpx.Client, field: str, param: str, literal: str, stream: bool
) -> None:
    value = f'{{"5": {literal}}}' if field == "logit_bias" else literal
    raw = json.dumps(body(stream=stream)).replace("{", f'{{"{field}": {value},', 1).encode()
    refused(client.post(CHAT, content=raw, headers=JSON), 400, "invalid_value", param)


def test_json_in_a_string_may_be_as_deep_as_a_body_and_no_deeper(client: httpx.Client) -> None:
    for levels, kind in ((65, "json"), (300, "structural_tag"), (1000, "json")):
        deep = '{"a":' * levels + "1" + "}" * levels
        answered = client.post(CHAT, json=body(structured_outputs={kind: deep}))
        refused(answered, 400, "invalid_value", f"structured_outputs.{kind}")


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}] * 10_001}, "messages"),
        ("/v1/messages", {"max_tokens": 1, "messages": [{}] * 10_001}, "messages"),
        ("/v1/responses", {"input": [{}] * 10_001}, "input"),
        ("/v1/completions", {"prompt": ["a"] * 1_001}, "prompt"),
    ],
)
def test_too_many_are_told_before_any_is_looked_at(
    client: httpx.Client, route: str, fields: dict[str, object], param: str
) -> None:
    error = client.post(route, json=fields).json()["error"]
    assert error["message"].startswith(f"{param} holds ") and "at most" in error["message"]


def test_of_repeated_keys_the_last_counts_and_the_order_of_the_others_does_not_matter(
    client: httpx.Client,
) -> None:
    raw = (
        b'{"max_tokens": 4, "max_tokens": 0, "messages": [{"role": "user", "content": "x", "role": "user"}]}'
    )
    refused(client.post(CHAT, content=raw, headers=JSON), 400, "invalid_value", "max_tokens")
    raw = b'{"stream": true, "stream": "no", "messages": [{"role": "user", "content": "x"}]}'
    refused(client.post(CHAT, content=raw, headers=JSON), 400, "invalid_value", "stream")


def test_nothing_of_a_body_that_cannot_be_read_is_logged_or_counted(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    word = b"KESTREL"
    good = json.dumps(body(messages=[{"role": "user", "content": word.decode()}])).encode()
    form = {"content-type": "multipart/form-data; boundary=x"}
    told = [
        client.post(CHAT, content=good.replace(word, word + b"\xff"), headers=JSON),
        client.post(CHAT, content=good.decode().encode("utf-16"), headers=JSON),
        client.post(CHAT, content=good[:-1], headers=JSON),
        client.post(CHAT, content=b"--x\r\n\r\n" + word + b"\r\n--x--\r\n", headers=form),
        client.post(CHAT, json=body(seed=word.decode())),
    ]
    assert [answer.status_code for answer in told] == [400, 400, 400, 415, 400]
    assert word.decode() not in caplog.text + client.get("/metrics").text
    assert not any(word in answer.content for answer in told[:4])


def test_a_byte_order_mark_is_no_json(client: httpx.Client) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(body()).encode()
    refused(client.post(CHAT, content=raw, headers=JSON), 400, "invalid_json")


def test_an_integer_of_four_hundred_digits_is_named(client: httpx.Client) -> None:
    raw = b'{"max_tokens": 1%s, "messages": [{"role": "user", "content": "x"}]}' % (b"0" * 400)
    response = client.post(CHAT, content=raw, headers=JSON)
    assert response.status_code == 400 and response.json()["error"]["code"] in {
        "invalid_value",
        "invalid_json",
    }


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [TOOL]}, "tools", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice.type", "unsupported_parameter"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "unsupported_parameter"),
        ({"guided_regex": "[a-"}, "guided_regex", "unsupported_parameter"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"chat_template": "{{ 7 * 7 }}"}, "chat_template", "invalid_template"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
    ],
)
def test_a_known_field_that_cannot_be_honoured_is_refused_by_name(
    chat: Chat, fields: dict[str, object], param: str, code: str
) -> None:
    refused(chat(**fields), 400, code, param)


def test_an_unknown_model_is_404_in_both_modes(chat: Chat) -> None:
    for stream in (False, True):
        error = refused(chat(model="gpt-" + "9" * 500, stream=stream), 404, "model_not_found", "model")
        assert len(str(error["message"])) < 300, "what is echoed is bounded"


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_body_that_does_not_say_json_is_415(client: httpx.Client, media_type: str | None) -> None:
    headers = {"content-type": media_type} if media_type else {}
    content = json.dumps(body()).encode()
    refused(client.post(CHAT, content=content, headers=headers), 415, "unsupported_media_type")


def test_an_unknown_route_is_404_and_a_wrong_method_405_with_allow(client: httpx.Client) -> None:
    refused(client.get("/v1/nothing"), 404, "not_found")
    refused(client.post("/v1/chat/completions/", json=body()), 404, "not_found")
    response = client.get(CHAT)
    refused(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_what_is_not_http_is_400_in_the_same_shape(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        wire.sendall(b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n")
        received = wire.recv(65_536)
    head, _, content = received.partition(b"\r\n\r\n")
    assert b"400 Bad Request" in head and b"application/json" in head
    assert json.loads(content)["error"]["code"] == "invalid_http"


def test_a_body_over_the_limit_is_413_before_it_is_read(server: Running, settings: Settings) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: {settings.max_body_bytes + 1}\r\n\r\n".encode())
        assert b" 413 " in wire.recv(65_536)


@pytest.mark.parametrize("size", [5 * 2**20, 27 * 2**20])
def test_who_sends_too_much_and_reads_only_then_is_told(server: Running, size: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + b" " * size)
        received = b"".join(iter(lambda: wire.recv(65_536), b""))
    assert b" 413 " in received.split(b"\r\n")[0] and b"body_too_large" in received


def test_a_body_over_the_limit_without_a_declared_length_is_413(
    client: httpx.Client, settings: Settings
) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(settings.max_body_bytes // 2**16 + 2):
            yield b" " * 2**16

    refused(client.post(CHAT, content=endless(), headers=JSON), 413, "body_too_large")


def test_a_body_that_does_not_arrive_is_408(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in wire.recv(65_536)


def test_a_request_whose_head_never_ends_is_hung_up_on(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        wire.sendall(b"POST / HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        try:
            received = wire.recv(1024)
        except ConnectionResetError:
            received = b""
    assert received == b"" and time.monotonic() - began < 8


def test_in_strict_mode_an_unknown_field_is_refused(engine: ScriptedEngine, server: Running) -> None:
    strict = Settings(strict=True)
    renderer = server.renderer
    with running(strict, ScriptedEngine(), renderer) as second, second.client() as client:
        response = client.post(CHAT, json=body(tempreature=1))
        refused(response, 400, "unsupported_parameter", "tempreature")


deep = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@examples(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(sorted(Settings.model_fields) + ["messages", "stop", "seed", "logit_bias"]),
    value=deep,
)
def test_nothing_a_body_can_hold_is_an_internal_error(
    client: httpx.Client, field: str, value: object
) -> None:
    request = {**body(max_tokens=0), field: value}  # max_tokens 0: refused in the end, whatever else it is
    raw = json.dumps(request).encode("utf-8", "surrogatepass")
    response = client.post(CHAT, content=raw, headers=JSON)
    assert response.status_code == 400
    json.loads(response.content, parse_constant=no_constant)
