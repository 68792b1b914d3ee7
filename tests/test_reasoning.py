"""Thinking on the wire: apart from the answer, in both modes, in usage, phases and metrics."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.prompt.renderer import Renderer
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import until
from tests.sse import read
from tests.tokens import deltas

THOUGHT, ANSWER = "So x < y.\nHm 🏳️‍🌈", "\n\nIt is y."
TEXT = f"<think>{THOUGHT}</think>{ANSWER}"


def ask(thinks: httpx.Client, **fields: Any) -> httpx.Response:
    return thinks.post("/v1/chat/completions", json=body(**{"max_tokens": 100, **fields}))


def play(engine: ScriptedEngine, renderer: Renderer, text: str = TEXT, **how: Any) -> int:
    """Script an answer, token by token; how many there are."""
    ids = renderer._tokenizer.encode(text, add_special_tokens=False).ids
    steps = list(deltas(renderer._tokenizer, ids, skip_special=False, **how))
    engine.script(*steps)
    return len(steps)


@pytest.mark.parametrize("logprobs", [False, True])
def test_thought_and_answer_come_apart_and_both_modes_agree(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer, logprobs: bool
) -> None:
    tokens = play(thinker, qwen3, logprobs=logprobs)
    whole = ask(thinks, logprobs=logprobs).json()
    [choice] = whole["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": ANSWER,
        "refusal": None,
        "reasoning": THOUGHT,
    }
    play(thinker, qwen3, logprobs=logprobs)
    events = read(ask(thinks, logprobs=logprobs, stream=True, stream_options={"include_usage": True}))
    streamed = [chunk["choices"][0]["delta"] for chunk in events.chunks]
    assert "".join(delta.get("reasoning", "") for delta in streamed) == THOUGHT
    assert "".join(delta.get("content", "") for delta in streamed) == ANSWER
    assert [delta.get("role") for delta in streamed] == ["assistant"] + [None] * (len(streamed) - 1)
    assert "content" not in streamed[0]
    assert events.usage == whole["usage"]
    thought = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert whole["usage"]["completion_tokens"] == tokens > thought > 8
    assert whole["phases"]["reasoning_tokens"] == events.objects[-1]["phases"]["reasoning_tokens"] == thought
    if logprobs:
        told = choice["logprobs"]
        assert len(told["reasoning"]) == thought and len(told["content"]) == tokens - thought
        assert b"".join(bytes(entry["bytes"]) for entry in told["content"]).decode() == ANSWER
        assert sum(len(c["choices"][0]["logprobs"]["content"]) for c in events.chunks) == tokens - thought


def test_an_answer_cut_while_thinking_has_no_content(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer
) -> None:
    ids = qwen3._tokenizer.encode(TEXT, add_special_tokens=False).ids[:5]
    steps = list(deltas(qwen3._tokenizer, ids, skip_special=False))
    steps[-1].finish = "length"
    thinker.script(*steps)
    answer = ask(thinks, max_tokens=5).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
    assert THOUGHT.startswith(choice["message"]["reasoning"]) and choice["message"]["reasoning"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


@pytest.mark.parametrize("stop", ["is y", "x < y", "</think>\n", "nk>"])
def test_a_stop_string_cuts_both_modes_alike(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer, stop: str
) -> None:
    play(thinker, qwen3, stop=stop)
    message = ask(thinks, stop=stop).json()["choices"][0]["message"]
    play(thinker, qwen3, stop=stop)
    streamed = [chunk["choices"][0]["delta"] for chunk in read(ask(thinks, stop=stop, stream=True)).chunks]
    assert "".join(delta.get("reasoning", "") for delta in streamed) == (message["reasoning"] or "")
    assert "".join(delta.get("content", "") for delta in streamed) == message["content"]


def test_thinking_counts_as_first_token_and_in_the_metrics(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer
) -> None:
    def counted() -> float:
        name = 'twophase_tokens_total{kind="reasoning"'
        lines = thinks.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    ids = qwen3._tokenizer.encode(TEXT, add_special_tokens=False).ids
    first, *rest = deltas(qwen3._tokenizer, ids, skip_special=False)
    thinker.script(first, rest[0], 0.3, *rest[1:])
    events = read(ask(thinks, stream=True, stream_options={"include_usage": True}))
    phases = events.objects[-1]["phases"]
    assert phases["ttft_ms"] < 300 < phases["total_ms"]
    assert phases["reasoning_tokens"] > 0
    until(lambda: counted() - before == phases["reasoning_tokens"])


def test_no_effort_leaves_thinking_out_of_the_prompt(thinks: httpx.Client, thinker: ScriptedEngine) -> None:
    thinker.script("Yes.")
    answer = ask(thinks, reasoning_effort="none").json()
    assert answer["choices"][0]["message"]["content"] == "Yes."
    assert answer["choices"][0]["message"]["reasoning"] is None
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_budget_for_thinking_goes_to_the_engine(thinks: httpx.Client, thinker: ScriptedEngine) -> None:
    thinker.script("Yes.")
    assert ask(thinks, thinking_token_budget=7).status_code == 200
    assert thinker.started[-1].sampling.thinking_token_budget == 7


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort", "invalid_value"),
        ({"reasoning_effort": 3}, "reasoning_effort", "invalid_value"),
        ({"thinking_token_budget": -1}, "thinking_token_budget", "invalid_value"),
        ({"thinking_token_budget": "7"}, "thinking_token_budget", "invalid_value"),
    ],
)
def test_an_effort_that_cannot_be_made_is_a_400(
    thinks: httpx.Client, thinker: ScriptedEngine, fields: dict[str, Any], param: str, code: str
) -> None:
    started = len(thinker.started)
    error = ask(thinks, **fields).json()["error"]
    assert (error["param"], error["code"], len(thinker.started)) == (param, code, started)


@pytest.mark.parametrize("fields", [{"reasoning_effort": "high"}, {"thinking_token_budget": 5}])
def test_without_a_parser_nothing_is_known_of_thinking(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any]
) -> None:
    error = ask(client, **fields).json()["error"]
    assert (error["param"], error["code"]) == (next(iter(fields)), "unsupported_parameter")
    plain = ask(client, max_tokens=2).json()
    assert "reasoning" not in plain["choices"][0]["message"]
    assert "completion_tokens_details" not in plain["usage"]
