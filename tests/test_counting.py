"""Tokenize and detokenize, and what all routes that count have in common. A real socket, engine scripted."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from service.settings import Settings
from tests.conftest import Serve, body
from tests.serving import Running, running
from tests.sizes import CHAT, EXPLAIN, Message, Reference, Sized, calling, probed, result, said

TALK: list[Message] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
    {"role": "user", "content": "Check 🦊 depth."},
    calling("c1"),
    result("c1", "4 m"),
    {"role": "user", "content": "So?"},
]
TEXTS = [
    "",
    "word",
    " two  spaces ",
    "def f(x):\n    return x",
    "🦊 ďábel 河",
    "<|im_start|>user\nHi<|im_end|>",
]


@pytest.fixture
def engine(sized: tuple[Sized, Running]) -> Sized:
    return sized[0].renew(4_096, cache=46_592)


@pytest.fixture
def server(sized: tuple[Sized, Running], engine: Sized) -> Running:
    return sized[1]


def refused(response: httpx.Response, code: str, param: str | None, status: int = 400) -> str:
    """What the error says, after checking its shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    return str(error["message"])


class TestTokenize:
    @pytest.mark.parametrize("text", TEXTS)
    def test_a_text_comes_back_from_its_ids(self, client: httpx.Client, text: str) -> None:
        told = client.post("/tokenize", json={"prompt": text}).json()
        assert set(told) == {"count", "max_model_len", "tokens", "token_strs"}
        assert (told["count"], told["max_model_len"], told["token_strs"]) == (
            len(told["tokens"]),
            4_096,
            None,
        )
        assert client.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": text}

    def test_messages_give_the_prompt_of_a_chat(
        self, client: httpx.Client, reference: Reference, engine: Sized
    ) -> None:
        told = client.post("/tokenize", json={"messages": TALK}).json()
        assert told["tokens"] == reference.ids(TALK)
        usage = client.post(CHAT, json=body(messages=TALK)).json()["usage"]
        assert usage["prompt_tokens"] == told["count"]
        assert engine.started[0].token_ids == told["tokens"]

    def test_messages_may_be_longer_than_the_window(self, client: httpx.Client) -> None:
        told = client.post("/tokenize", json={"messages": [said("system", 1), said("user", 9_000)]}).json()
        assert told["count"] == 9_000 + 1 + 5 + 5 + 4

    def test_the_ways_to_end_a_conversation_are_those_of_a_chat(
        self, client: httpx.Client, reference: Reference
    ) -> None:
        messages = [said("user", 2), said("assistant", 2)]
        open_ended = {"messages": messages, "continue_final_message": True}
        told = client.post("/tokenize", json=open_ended).json()
        assert told["tokens"] == reference.ids(messages, continue_final_message=True)
        told = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
        assert told["tokens"] == reference.ids(messages, add_generation_prompt=False)
        both = client.post("/tokenize", json={**open_ended, "add_generation_prompt": True})
        refused(both, "invalid_value", "continue_final_message")

    @pytest.mark.parametrize("form", [{"prompt": "Hi 🦊"}, {"messages": [said("user", 2)]}])
    def test_names_of_tokens_come_when_asked_for(self, client: httpx.Client, form: dict[str, Any]) -> None:
        told = client.post("/tokenize", json={**form, "return_token_strs": True}).json()
        assert len(told["token_strs"]) == told["count"]
        assert ("<|im_start|>" in told["token_strs"]) == ("messages" in form)

    def test_a_control_token_in_a_text_is_that_token_and_in_a_message_it_is_not(
        self, client: httpx.Client, reference: Reference
    ) -> None:
        name = "<|im_start|>"
        text = client.post("/tokenize", json={"prompt": name}).json()["tokens"]
        talk = client.post("/tokenize", json={"messages": [{"role": "user", "content": name}]}).json()
        assert text == [reference.control(name)]
        assert talk["tokens"].count(reference.control(name)) == 3, "a default system turn, the user's, ours"

    def test_long_texts_are_counted_while_others_are_served(self, server: Running) -> None:
        text = "word " * 100_000
        with server.client() as client, probed(server):
            told = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
            assert told["count"] == len(told["token_strs"]) > 100_000
            back = client.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
        assert back == text

    @pytest.mark.parametrize(
        ("wish", "param", "code"),
        [
            ({}, "prompt", "missing_value"),
            ({"prompt": None}, "prompt", "missing_value"),
            ({"prompt": "x", "messages": [said("user", 1)]}, "prompt", "invalid_value"),
            ({"prompt": 5}, "prompt", "invalid_value"),
            ({"prompt": ["x"]}, "prompt", "invalid_value"),
            ({"prompt": "x", "add_special_tokens": "yes"}, "add_special_tokens", "invalid_value"),
            ({"prompt": "x", "return_token_strs": 1}, "return_token_strs", "invalid_value"),
            ({"messages": []}, "messages", "invalid_value"),
            ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
            ({"messages": [said("user", 1)], "chat_template": "x"}, "chat_template", "invalid_template"),
            (
                {"messages": [said("user", 1)], "chat_template_kwargs": {"tools": []}},
                "chat_template_kwargs.tools",
                "invalid_template",
            ),
        ],
    )
    def test_a_field_that_cannot_be_is_refused_by_name(
        self, client: httpx.Client, wish: dict[str, Any], param: str, code: str
    ) -> None:
        refused(client.post("/tokenize", json=wish), code, param)


class TestDetokenize:
    def test_control_tokens_come_back_by_their_names(
        self, client: httpx.Client, reference: Reference
    ) -> None:
        ids = reference.ids([said("user", 2)])
        text = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
        assert text.endswith("<|im_start|>user\nword word<|im_end|>\n<|im_start|>assistant\n")
        assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}

    @pytest.mark.parametrize(
        ("wish", "param"),
        [
            ({}, "tokens"),
            ({"tokens": "x"}, "tokens"),
            ({"tokens": [1, -1]}, "tokens[1]"),
            ({"tokens": [True]}, "tokens[0]"),
            ({"tokens": [1.5]}, "tokens[0]"),
            ({"tokens": [49_152]}, "tokens"),
            ({"tokens": [2**63]}, "tokens[0]"),
        ],
    )
    def test_what_is_no_id_of_this_model_is_refused(
        self, client: httpx.Client, wish: dict[str, Any], param: str
    ) -> None:
        refused(
            client.post("/detokenize", json=wish), "missing_value" if not wish else "invalid_value", param
        )


ROUTES = [
    ("/v1/chat/completions/explain", {"messages": [said("user", 1)]}),
    ("/tokenize", {"prompt": "x"}),
    ("/tokenize", {"messages": [said("user", 1)]}),
    ("/detokenize", {"tokens": [1]}),
]


@pytest.mark.parametrize(("route", "wish"), ROUTES)
class TestAllThatTakeABody:
    def test_another_model_is_404(self, client: httpx.Client, route: str, wish: dict[str, Any]) -> None:
        assert client.post(route, json={**wish, "model": "smollm2-135m-instruct"}).status_code == 200
        refused(client.post(route, json={**wish, "model": "gpt-4"}), "model_not_found", "model", 404)

    def test_fields_nobody_knows_are_named_or_in_strict_mode_refused(
        self, serve: Serve, client: httpx.Client, route: str, wish: dict[str, Any]
    ) -> None:
        response = client.post(route, json={**wish, "tempreature": 1})
        assert response.status_code == 200 and response.headers["x-ignored-params"] == "tempreature"
        strict = serve(strict=True)
        assert strict.post(route, json=wish).status_code == 200
        response = strict.post(route, json={**wish, "tempreature": 1})
        refused(response, "unsupported_parameter", "tempreature")

    def test_only_json_of_a_bounded_size_is_read(
        self, client: httpx.Client, settings: Settings, route: str, wish: dict[str, Any]
    ) -> None:
        plain = client.post(route, content=b"x", headers={"content-type": "text/plain"})
        refused(plain, "unsupported_media_type", None, status=415)
        too_much = {**wish, "padding": "x" * settings.max_body_bytes}
        refused(client.post(route, json=too_much), "body_too_large", None, status=413)
        half = b'{"prompt": "\\ud83e", "messages": [{"role": "user", "content": "\\ud83e"}]}'
        broken = client.post(route, content=half, headers={"content-type": "application/json"})
        refused(broken, "invalid_json", None)


NAMES = [
    *("prompt", "messages", "tokens", "model", "add_special_tokens", "return_token_strs", "truncation"),
    *("max_tokens", "n", "continue_final_message", "add_generation_prompt", "chat_template_kwargs"),
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@examples(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(ROUTES), fields=st.dictionaries(st.sampled_from(NAMES), anything, max_size=3))
def test_nothing_a_body_can_hold_is_an_internal_error(
    client: httpx.Client, route: tuple[str, dict[str, Any]], fields: dict[str, Any]
) -> None:
    path, wish = route
    raw = json.dumps({**wish, **fields}).encode("utf-8", "surrogatepass")
    response = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404)
    json.loads(response.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("route", [CHAT, EXPLAIN, "/tokenize", "/detokenize"])
def test_a_client_that_leaves_while_it_sends_is_no_error(
    server: Running, caplog: pytest.LogCaptureFixture, route: str
) -> None:
    head = (
        f"POST {route} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        wire.sendall(head.encode() + b'{"m')
        time.sleep(0.1)
    time.sleep(0.1)
    with server.client() as client:
        assert client.get("/livez").status_code == 200
    assert server.life.in_flight == 0
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


class Loading(Sized):
    """It starts when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = threading.Event()

    async def start(self) -> None:
        await asyncio.to_thread(self.loaded.wait)


def test_nothing_is_counted_before_the_model_is_there(server: Running) -> None:
    engine = Loading()
    with running(Settings(), engine, server.renderer, wait=False) as early, early.client() as client:
        try:
            early_answers = [client.post(route, json=wish) for route, wish in ROUTES]
            early_answers.append(client.get("/v1/capacity"))
        finally:
            engine.loaded.set()  # the server ends only after it has begun
    for response in early_answers:
        refused(response, "not_ready", None, status=503)
