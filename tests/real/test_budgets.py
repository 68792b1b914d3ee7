"""Budgets on the real engine: it counts what we count, and takes a request that fills its window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.engine.embedded import cpu_dtype
from tests.conftest import body
from tests.sizes import CHAT, EXPLAIN, Message, Reference, calling, result, said
from tests.sse import read

pytestmark = pytest.mark.engine

WINDOW = 8_192
SHAPES: list[tuple[list[Message], dict[str, Any]]] = [
    ([{"role": "user", "content": "Name three 🦊 rivers."}], {}),
    ([said("system", 9), said("user", 30), said("assistant", 30), {"role": "user", "content": "\nSo?"}], {}),
    ([said("user", 5), calling("c1", "c2"), result("c2", "30 m"), result("c1", "4 m"), said("user", 5)], {}),
    ([{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, said("user", 5)], {}),
    ([said("user", 5), said("assistant", 5)], {"continue_final_message": True}),
]


@pytest.mark.parametrize(("messages", "flags"), SHAPES)
def test_the_engine_counts_what_explain_counts(
    web: httpx.Client, reference: Reference, messages: list[Message], flags: dict[str, Any]
) -> None:
    request = body(messages=messages, max_tokens=2, **flags)
    told = web.post(EXPLAIN, json=request).json()
    whole = web.post(CHAT, json=request).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = read(web.post(CHAT, json={**request, **options})).usage
    assert streamed is not None
    counts = {told["prompt_tokens"], whole["usage"]["prompt_tokens"], streamed["prompt_tokens"]}
    assert counts == {reference.count(messages, **flags)}


def test_prompt_and_output_may_fill_the_whole_window(patient: httpx.Client, reference: Reference) -> None:
    messages = reference.filled([said("user", 1)], WINDOW - 16)
    request = body(messages=messages, max_tokens=16, ignore_eos=True)
    told = patient.post(CHAT, json=request).json()
    assert told["usage"]["prompt_tokens"] == WINDOW - 16
    assert told["usage"]["completion_tokens"] == 16 and told["budget"]["action"] == "none"
    clamped = patient.post(CHAT, json={**request, "max_tokens": 17}).json()
    assert clamped["usage"]["completion_tokens"] == 16 and clamped["budget"]["clamped_from"] == 17


def test_a_prompt_as_long_as_the_window_is_refused_and_harms_nobody(
    web: httpx.Client, reference: Reference
) -> None:
    response = web.post(CHAT, json=body(messages=reference.filled([said("user", 1)], WINDOW), max_tokens=1))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert web.post(CHAT, json=body()).status_code == 200


def test_the_cache_has_the_size_it_was_given(web: httpx.Client) -> None:
    told = web.get("/v1/capacity").json()
    of_a_number = 4 if cpu_dtype() == "float32" else 2
    assert told["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * of_a_number  # both, layers, KV heads, head size
    given = 536_870_912
    of_a_block = told["kv_bytes_per_token"] * told["block_size"]
    assert given - of_a_block * 2 < told["capacity_tokens"] * told["kv_bytes_per_token"] <= given
    assert told["approximate"] is None
    assert 0 < told["chats_now"] <= told["chats_idle"] == told["capacity_tokens"] // told["tokens_per_chat"]


@pytest.fixture
def patient(web: httpx.Client) -> Iterator[httpx.Client]:
    """A client with patience: reading a full window takes two CPU cores a while."""
    with httpx.Client(base_url=web.base_url, timeout=240) as client:
        yield client
