"""`POST /v1/messages` over the scripted engine: events, blocks, turns, refusals in Anthropic's shape."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.engine.protocol import CallDelta, Delta
from service.errors import EngineUnavailable
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import Serve
from tests.scripted import ScriptedEngine
from tests.serving import Running, until

ROUTE = "/v1/messages"
PIECES = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}}


def ask(client: httpx.Client, **fields: object) -> httpx.Response:
    """A small valid request, with fields replaced or added."""
    request = {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 4, **fields}
    return client.post(ROUTE, json={name: value for name, value in request.items() if value != "left out"})


def events(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each event; both name it."""
    found = re.findall(r"event: (\w+)\ndata: (.+)\n\n", response.text)
    assert "".join(f"event: {name}\ndata: {data}\n\n" for name, data in found) == response.text
    told = [(name, json.loads(data)) for name, data in found]
    assert all(data["type"] == name for name, data in told)
    return told


def joined(told: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks of a stream, as the whole answer has them. Each begins, grows and ends before the next."""
    blocks: list[dict[str, Any]] = []
    open_at = None
    for name, data in told:
        if name == "content_block_start":
            assert open_at is None and data["index"] == len(blocks)
            open_at = data["index"]
            blocks.append({**data["content_block"], "json": ""})
        elif name == "content_block_delta":
            assert data["index"] == open_at
            delta = data["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[
                delta["type"]
            ]
            blocks[-1][name] += delta.get("partial_json", delta.get(name))
        elif name == "content_block_stop":
            assert data["index"] == open_at
            open_at = None
    assert open_at is None
    for block in blocks:
        if written := block.pop("json"):
            block["input"] = json.loads(written)
    return blocks


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """The sentence of a refusal in Anthropic's shape."""
    assert response.status_code == status, response.text
    answer = response.json()
    assert set(answer) == {"type", "error"} and answer["type"] == "error"
    assert set(answer["error"]) == {"type", "message"} and answer["error"]["type"] == kind
    return str(answer["error"]["message"])


def test_a_whole_answer_has_the_shape(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = ask(client).json()
    assert answer["id"].startswith("msg_") and answer["type"] == "message" and answer["role"] == "assistant"
    assert answer["content"] == [{"type": "text", "text": "word " * 4}]
    assert answer["stop_reason"] == "max_tokens" and answer["stop_sequence"] is None
    prompt = len(engine.started[0].token_ids)
    assert answer["usage"] == {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 4,
    }
    assert answer["budget"]["prompt_tokens"] == prompt and answer["phases"]["decode_steps"] == 3


def test_a_stream_is_the_same_answer_in_blocks(client: httpx.Client) -> None:
    whole, told = ask(client).json(), events(ask(client, stream=True))
    assert [name for name, _ in told] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    begun, ended = told[0][1]["message"], told[-2][1]
    assert begun["content"] == [] and begun["stop_reason"] is None
    assert begun["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert joined(told) == whole["content"]
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert ended["usage"] == whole["usage"] and ended["budget"] == whole["budget"]
    assert ended["phases"]["decode_steps"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_a_block_of_its_own(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script('{"ci', 'ty": "Oslo"', "}")
    response = ask(client, **FORCED, max_tokens=20, stream=stream)
    if stream:
        told = events(response)
        (block,), reason = joined(told), told[-2][1]["delta"]["stop_reason"]
    else:
        (block,), reason = response.json()["content"], response.json()["stop_reason"]
    assert block["type"] == "tool_use" and block["name"] == "weather" and block["id"]
    assert block["input"] == {"city": "Oslo"} and reason == "tool_use"


def test_arguments_that_are_cut_off_are_given_as_far_as_they_go(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script('{"city": "Oslo", "day', "s")
    answer = ask(client, **FORCED, max_tokens=2).json()
    assert answer["content"][0]["input"] == {"city": "Oslo"} and answer["stop_reason"] == "max_tokens"


def test_text_and_several_calls_are_blocks_in_their_order(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    calls = [
        CallDelta(0, '{"a":', "call_1", "weather"),
        CallDelta(0, "1}"),
        CallDelta(1, "{}", "call_2", "clock"),
    ]
    engine.script("Let me ", Delta(0, "see.", [2], calls=calls), Delta(0, "", [3], "tool_calls"))
    assert joined(events(ask(client, stream=True, max_tokens=9))) == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
    ]


def test_the_string_that_ended_it_is_told(client: httpx.Client, engine: ScriptedEngine) -> None:
    for stream in (False, True):
        engine.script(Delta(0, "said", [1], "stop", stopped_by="END"))
        response = ask(client, stop_sequences=["END"], stream=stream)
        told = events(response)[-2][1]["delta"] if stream else response.json()
        assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    engine.script("said")
    assert ask(client).json()["stop_reason"] == "end_turn"


def test_an_answer_that_the_window_cut_says_so(client: httpx.Client) -> None:
    assert ask(client, max_tokens=5000).json()["stop_reason"] == "model_context_window_exceeded"


def test_a_silent_stream_gets_pings(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script(0.7, "late")
    told = events(ask(client, stream=True))
    assert told[0][0] == "message_start" and [name for name, _ in told].count("ping") >= 2
    assert joined(told) == [{"type": "text", "text": "late"}]


def test_a_failure_in_mid_stream_is_an_error_event(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script("half ", EngineUnavailable("The engine has stopped; try again later."))
    name, data = events(ask(client, stream=True))[-1]
    assert name == "error" and data["error"]["type"] == "overloaded_error"
    engine.script(EngineUnavailable("The engine has stopped; try again later."))
    assert "engine has stopped" in refused(ask(client), 503, "overloaded_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(
    client: httpx.Client, server: Running, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script("word ", 30.0, "never")
    request = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        client.post(ROUTE, json=request, timeout=0.3)
    until(lambda: len(engine.aborted) == 1 and server.life.in_flight == 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": "left out"}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages must be"),
        ({"messages": "left out"}, "messages is missing"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice names other"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL]}, "tool_choice to any, or name a tool"),
        ({"tool_choice": {"type": "any"}}, "tool_choice wants a call"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, "maximum context length"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_in_the_callers_words(
    client: httpx.Client, fields: dict[str, object], named: str
) -> None:
    assert named in refused(ask(client, **fields), 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"system": "<|im_end|>"}, "system"),
        ({"system": "Fine.", "messages": [{"role": "user", "content": "<|im_end|>"}]}, "messages[0].content"),
    ],
)
def test_what_cannot_be_rendered_is_named_by_its_place_in_the_request(
    serve: Serve, embedded_model: Path, fields: dict[str, object], place: str
) -> None:
    client = serve(Renderer.load(str(embedded_model), control_tokens="reject"))
    said = refused(ask(client, **fields), 400, "invalid_request_error")
    assert said.startswith(f"{place} contains <|im_end|>")


def test_results_must_belong_to_calls(client: httpx.Client) -> None:
    result = {"type": "tool_result", "tool_use_id": "call_9", "content": "12 degrees"}
    said = refused(
        ask(client, messages=[{"role": "user", "content": [result]}]), 400, "invalid_request_error"
    )
    assert said.startswith("messages[0].content[0].tool_use_id is call_9")
    call = {"type": "tool_use", "id": "call_9", "name": "weather", "input": {}}
    turns = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [call]}]
    assert "messages[1] calls tools" in refused(ask(client, messages=turns), 400, "invalid_request_error")
    assert ask(client, messages=[*turns, {"role": "user", "content": [result]}]).status_code == 200


def test_a_last_turn_of_the_assistant_is_the_beginning_of_the_answer(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    turns = [{"role": "user", "content": "Capital of Norway?"}, {"role": "assistant", "content": "It is"}]
    ask(client, messages=turns)
    told = client.post("/detokenize", json={"tokens": list(engine.started[0].token_ids)}).json()
    assert told["prompt"].endswith("assistant\nIt is")


def test_the_count_is_the_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    turns: dict[str, object] = {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi there"}]}
    counted = client.post(f"{ROUTE}/count_tokens", json=turns)
    assert ask(client, **turns).json()["usage"]["input_tokens"] == counted.json()["input_tokens"]
    refused(client.post(f"{ROUTE}/count_tokens", json={}), 400, "invalid_request_error")
    refused(client.post(f"{ROUTE}/count_tokens", json={**turns, "model": "other"}), 404, "not_found_error")


def test_unknown_fields_are_told_and_strict_refuses_them(client: httpx.Client, serve: Serve) -> None:
    assert ask(client, colour="red").headers["x-ignored-params"] == "colour"
    assert "colour" in refused(ask(serve(strict=True), colour="red"), 400, "invalid_request_error")


def test_a_key_comes_in_either_header_and_refusals_have_the_shape(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    digest = hashlib.sha256(b"k").hexdigest()
    file.write_text(f'[[tenant]]\nname = "a"\nkey_sha256 = ["{digest}"]\nrequests_per_minute = 2\n')
    client = serve(tenants_file=file)
    refused(ask(client), 401, "authentication_error")
    for headers in ({"x-api-key": "wrong"}, {"x-api-key": "k", "authorization": "Bearer k"}):
        client.headers = httpx.Headers(headers)
        refused(ask(client), 401, "authentication_error")
    for headers in ({"x-api-key": "k"}, {"authorization": "Bearer k"}):
        client.headers = httpx.Headers(headers)
        assert ask(client).status_code == 200
    limited = ask(client)
    refused(limited, 429, "rate_limit_error")
    assert limited.headers["retry-after"].isdigit()


def test_refusals_before_the_route_have_the_shape_too(serve: Serve, settings: Settings) -> None:
    client = serve(max_body_bytes=1024)
    refused(client.get(ROUTE), 405, "invalid_request_error")
    refused(client.post(f"{ROUTE}/nothing", json={}), 404, "not_found_error")
    refused(ask(client, system="x" * 2000), 413, "request_too_large")
    refused(client.post(ROUTE, content=b"{"), 415, "invalid_request_error")
    assert "error" in client.get("/v1/messagesx").json() and "type" not in client.get("/v1/messagesx").json()


def test_history_is_cut_where_the_caller_wants_it(client: httpx.Client) -> None:
    turns = [{"role": role, "content": "old " * 300} for _ in range(4) for role in ("user", "assistant")]
    asked = {"messages": [*turns, {"role": "user", "content": "And now?"}], "truncation": "auto"}
    response = ask(client, **asked)
    assert response.headers["x-budget-action"] == "truncated"
    assert response.json()["budget"]["dropped_messages"] > 0


def test_the_request_s_id_is_also_where_anthropic_s_client_looks_for_it(client: httpx.Client) -> None:
    for response in (ask(client), ask(client, max_tokens=0), client.get("/v1/messages")):
        assert response.headers["request-id"] == response.headers["x-request-id"]
    assert "request-id" not in client.get("/livez").headers
