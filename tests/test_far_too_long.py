"""Prompts whose mere length shows that they cannot fit: told at once, and never tokenized."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.prompt.prompt import RenderOptions
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import Serve, body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.sizes import probed
from tests.wire import connect

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


@contextmanager
def two_streams_beside(server: Running, engine: ScriptedEngine, within_s: float = 5) -> Iterator[None]:
    """While the block runs, and a little longer, two streams go on, their deltas never `within_s` apart."""
    over = threading.Event()
    heard = [0, 0]

    def longest_gap_s(which: int) -> float:
        gap_s, after = 0.0, 0
        with (
            server.client() as client,
            client.stream("POST", CHAT, json=body(stream=True, max_tokens=900)) as stream,
        ):
            last = time.monotonic()
            for line in stream.iter_lines():
                if "word " not in line:
                    continue
                gap_s, last = max(gap_s, time.monotonic() - last), time.monotonic()
                heard[which] += 1
                after += over.is_set()
                if after == 5:
                    break
        return gap_s if after == 5 else float("inf")

    for _ in heard:
        engine.script(*(step for _ in range(900) for step in ("word ", 0.05)))
    with ThreadPoolExecutor(2) as pool:
        gaps = [pool.submit(longest_gap_s, which) for which in (0, 1)]
        until(lambda: all(heard))
        try:
            yield
        finally:
            over.set()
        assert max(gap.result(30) for gap in gaps) < within_s


@pytest.mark.parametrize("megabytes", [5, 27])
def test_a_body_over_the_limit_is_refused_half_way_while_streams_beside_it_go_on(
    server: Running, engine: ScriptedEngine, megabytes: int
) -> None:
    content = json.dumps(body(messages=[{"role": "user", "content": "word " * (megabytes * 200_000)}]))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    with two_streams_beside(server, engine), probed(server), connect(server) as wire:
        wire.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content[: len(content) // 2]}".encode())
        received = wire.recv(65_536)
    assert b" 413 " in received.split(b"\r\n")[0] and b"body_too_large" in received


@pytest.mark.parametrize("megabytes", [5, 27])
def test_a_body_within_a_raised_limit_is_judged_by_its_length_while_streams_beside_it_go_on(
    engine: ScriptedEngine, renderer: Renderer, megabytes: int
) -> None:
    asked = body(messages=[{"role": "user", "content": "word " * (megabytes * 200_000)}])
    with (
        running(Settings(max_body_bytes=64 * 2**20), engine, renderer) as server,
        server.client() as client,
        two_streams_beside(server, engine),
        probed(server),
    ):
        response = client.post(CHAT, json=asked)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "context_length_exceeded"
