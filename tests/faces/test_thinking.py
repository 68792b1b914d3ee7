"""Thinking through the other faces: a block or an item of its own, before the answer."""

from __future__ import annotations

import httpx
import pytest

from service.prompt.renderer import Renderer
from tests.faces.test_messages import events, joined
from tests.faces.test_responses import events as items_events
from tests.scripted import ScriptedEngine
from tests.test_reasoning import ANSWER, THOUGHT, play

ASKED = {"messages": [{"role": "user", "content": "x or y?"}], "max_tokens": 100}


@pytest.mark.parametrize("stream", [False, True])
def test_messages_have_thinking_in_a_block_before_the_text(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer, stream: bool
) -> None:
    play(thinker, qwen3)
    response = thinks.post("/v1/messages", json={**ASKED, "stream": stream})
    told = events(response) if stream else []
    answer = told[-2][1] if stream else response.json()
    assert (joined(told) if stream else answer["content"]) == [
        {"type": "thinking", "thinking": THOUGHT, "signature": ""},
        {"type": "text", "text": ANSWER},
    ]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_thinking_in_an_item_before_the_message(
    thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer, stream: bool
) -> None:
    play(thinker, qwen3)
    response = thinks.post("/v1/responses", json={"input": "x or y?", "stream": stream})
    answer = items_events(response)[-1]["response"] if stream else response.json()
    thought, message = answer["output"]
    assert thought["type"] == "reasoning" and thought["summary"] == []
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert message["content"][0]["text"] == ANSWER
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_thinking_is_bounded_or_left_out_as_messages_say_it(
    thinks: httpx.Client, thinker: ScriptedEngine
) -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        assert thinks.post("/v1/messages", json={**ASKED, "thinking": thinking}).status_code == 200
    bounded, without, free = thinker.started[-3:]
    assert bounded.sampling.thinking_token_budget == 1024
    assert len(without.token_ids) > len(free.token_ids), "an empty thought stands in the prompt"


def test_a_completion_is_text_alone(thinks: httpx.Client, thinker: ScriptedEngine, qwen3: Renderer) -> None:
    thinker.script("<think>", "hmm", "</think>", "x")
    answer = thinks.post("/v1/completions", json={"prompt": "x or y?"}).json()
    assert answer["choices"][0]["text"] == "<think>hmm</think>x"
    assert "completion_tokens_details" not in answer["usage"]
