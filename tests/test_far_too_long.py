"""Prompts whose mere length shows that they cannot fit: told at once, and never tokenized."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.prompt.prompt import RenderOptions
from service.prompt.renderer import Renderer
from tests.conftest import Serve, body
from tests.serving import Running

CHAT = "/v1/chat/completions"
WINDOW = 1024


def far(renderer: Renderer) -> int:
    """Characters that no window of `WINDOW` tokens can hold."""
    assert renderer.vocabulary.longest > 0, "this model's tokenizer is one of those that can be judged"
    return WINDOW * renderer.vocabulary.longest + 1


@given(text=st.text(max_size=300) | st.text(" \n\t-=*#_", max_size=600))
def test_no_text_has_fewer_tokens_than_its_length_says(renderer: Renderer, text: str) -> None:
    prompt = renderer.render_blocking([{"role": "user", "content": text or "x"}], RenderOptions())
    assert len(prompt.token_ids) * renderer.vocabulary.longest >= len(prompt.text)


@pytest.mark.parametrize("route", [CHAT, f"{CHAT}/explain"])
def test_it_is_refused_with_the_window_and_no_piece_of_it_is_remembered(
    server: Running, client: httpx.Client, route: str
) -> None:
    text = "word " * (far(server.renderer) // 5 + 1)
    client.post(CHAT, json=body())
    before = server.renderer.cache_used_bytes
    response = client.post(route, json=body(messages=[{"role": "user", "content": text}]))
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert f"This model's maximum context length is {WINDOW}" in error["message"]
    assert "the prompt has at least " in error["message"] and error["param"] == "messages"
    assert server.renderer.cache_used_bytes == before


def test_history_that_is_far_too_long_still_gives_way(server: Running, serve: Serve) -> None:
    turn = "word " * (far(server.renderer) // 20)
    talk = [{"role": ("user", "assistant")[at % 2], "content": turn} for at in range(12)]
    client = serve(max_body_bytes=64 * 2**20)
    question = {"role": "user", "content": "Name three rivers."}
    asked = body(messages=[*talk, {"role": "user", "content": "Hello"}, question], truncation="auto")
    response = client.post(CHAT, json=asked)
    assert response.status_code == 200, response.text
    assert response.json()["budget"]["dropped_messages"] == 12
    assert response.json()["budget"]["prompt_tokens"] < 100
    asked["messages"] = [*talk, {"role": "user", "content": turn * 10}]
    refused = client.post(CHAT, json=asked)
    assert refused.status_code == 400 and "12 of them" in refused.json()["error"]["message"]
