"""One conversation gives one prompt through every face that has conversations, on each template there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.prompt.published import published
from tests.scripted import ScriptedEngine
from tests.serving import running

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED = {"name": "weather", "description": "The weather of a city"}
TALKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a question": (
        {"messages": [{"role": "user", "content": "Hi 🦊"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi 🦊"}]}]},
        {"input": "Hi 🦊"},
    ),
    "a system's text and a history": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "One\nline"},
                {"role": "assistant", "content": "Two"},
                {"role": "user", "content": "Three"},
            ]
        },
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "One\nline"},
                {"role": "assistant", "content": [{"type": "text", "text": "Two"}]},
                {"role": "user", "content": "Three"},
            ],
        },
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "One\nline"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
                {"role": "user", "content": "Three"},
            ],
        },
    ),
    "tools, calls and results": (
        {
            "tools": [{"type": "function", "function": {**NAMED, "parameters": SCHEMA}}],
            "messages": [
                {"role": "user", "content": "Weather in Oslo?"},
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
                {"role": "user", "content": "And tomorrow?"},
            ],
        },
        {
            "tools": [{**NAMED, "input_schema": SCHEMA}],
            "messages": [
                {"role": "user", "content": "Weather in Oslo?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": "12 degrees"},
                        {"type": "text", "text": "And tomorrow?"},
                    ],
                },
            ],
        },
        {
            "tools": [{"type": "function", **NAMED, "parameters": SCHEMA}],
            "input": [
                {"role": "user", "content": "Weather in Oslo?"},
                {"role": "assistant", "content": "Let me see."},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "weather",
                    "arguments": '{"city":"Oslo"}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "12 degrees"},
                {"role": "user", "content": "And tomorrow?"},
            ],
        },
    ),
}
FORCED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 2, "tool_choice": "required"},
    {"max_tokens": 2, "tool_choice": {"type": "any"}},
    {"max_output_tokens": 2, "tool_choice": "required"},
)
ROUTES = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@pytest.fixture(scope="module", params=["embedded", "llama-3.1", "qwen3", "gemma-3"])
def house(
    request: pytest.FixtureRequest, renderer: Renderer
) -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    """An engine that keeps what it was sent, and a client of a service with a real tokenizer and template."""
    chosen = renderer if request.param == "embedded" else Renderer.load(str(published(request.param)))
    engine = ScriptedEngine(4096)
    with running(Settings(), engine, chosen) as server, server.client() as client:
        yield engine, client


@pytest.mark.parametrize("talk", TALKS)
def test_every_face_sends_the_same_prompt(house: tuple[ScriptedEngine, httpx.Client], talk: str) -> None:
    engine, client = house
    sent: list[list[int] | str] = []
    for route, asked, forced in zip(ROUTES, TALKS[talk], FORCED, strict=True):
        choice = forced if "tools" in asked else {name: forced[name] for name in forced if "max" in name}
        response = client.post(route, json={**asked, **choice})
        refused = response.status_code == 400  # some templates know no results of tools, whoever asks
        sent.append(response.json()["error"]["message"] if refused else engine.started[-1].token_ids)
    assert sent[0] == sent[1] == sent[2] and len(sent[0]) > 3
    assert isinstance(sent[0], list) or "tools" in talk


@pytest.mark.parametrize("talk", ["a question", "a system's text and a history"])
def test_the_count_of_messages_is_that_prompt(house: tuple[ScriptedEngine, httpx.Client], talk: str) -> None:
    engine, client = house
    asked = TALKS[talk][1]
    assert client.post("/v1/messages", json={**asked, "max_tokens": 2}).status_code == 200
    counted = client.post("/v1/messages/count_tokens", json=asked).json()
    assert counted == {"input_tokens": len(engine.started[-1].token_ids)}
