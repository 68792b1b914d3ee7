"""Thinking on the real engine: a one-layer model whose tokenizer has marks, allowed to say little else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.random_model import make, name_marks
from tests.conftest import body
from tests.real.conftest import serving
from tests.sse import read

pytestmark = pytest.mark.engine

WORDS = list(range(300, 330))


@pytest.fixture(scope="module")
def thinker(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service whose model has marks for its thinking."""
    model = make(tmp_path_factory.mktemp("models") / "thinker", cache, context_window=1024)
    name_marks(model)
    with (
        serving(
            "--model",
            str(model),
            TWOPHASE_ENGINE_ARGS='{"kv_cache_memory_bytes": 33554432, "max_num_seqs": 2}',
            TWOPHASE_REASONING_PARSER="deepseek_r1",
            TWOPHASE_CHAT_TEMPLATE=str(_opening(model)),
            TWOPHASE_SLO_TTFT_MS="600000",
        ) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def _opening(model: Path) -> Path:
    """The model's chat template, which begins the thinking where an answer begins."""
    path = model / "opening.jinja"
    opened = "{% if add_generation_prompt %}{{ '<think>' }}{% endif %}"
    path.write_text((model / "chat_template.jinja").read_text() + opened)
    return path


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    sampled = {"temperature": 1.0, "max_tokens": 80, "ignore_eos": True, **fields}
    return client.post("/v1/chat/completions", json=body(**sampled))


@pytest.mark.parametrize("stop", [None, ["e"]])
def test_both_modes_agree_and_the_tokens_add_up(thinker: httpx.Client, stop: list[str] | None) -> None:
    ended = 0
    for seed in range(6):
        fields = {"seed": seed, "stop": stop, "allowed_token_ids": [*WORDS, 4, 4]}
        whole = ask(thinker, logprobs=True, **fields).json()
        [choice] = whole["choices"]
        message, told = choice["message"], choice["logprobs"]
        streamed = [
            chunk["choices"][0]["delta"] for chunk in read(ask(thinker, stream=True, **fields)).chunks
        ]
        assert "".join(delta.get("reasoning", "") for delta in streamed) == (message["reasoning"] or "")
        assert "".join(delta.get("content", "") for delta in streamed) == message["content"]
        assert "think>" not in message["content"].partition("</think>")[0]
        assert "think>" not in (message["reasoning"] or "")
        thought = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert len(told.get("reasoning", ())) == thought
        assert len(told["content"]) == whole["usage"]["completion_tokens"] - thought
        ended += bool(message["content"])
    assert stop or ended


def test_an_answer_that_never_stops_thinking_has_no_content(thinker: httpx.Client) -> None:
    answer = ask(thinker, allowed_token_ids=WORDS, max_tokens=20).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
    assert answer["phases"]["reasoning_tokens"] == 20


def test_a_budget_ends_the_thinking(thinker: httpx.Client) -> None:
    answer = ask(thinker, thinking_token_budget=9, max_tokens=30).json()
    assert 9 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 11
    assert answer["choices"][0]["message"]["content"]
