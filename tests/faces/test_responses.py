"""`POST /v1/responses` over the scripted engine: typed events, items, what is stored, refusals."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.engine.protocol import CallDelta, Delta, TokenLogprob
from service.errors import EngineUnavailable
from tests.conftest import Serve
from tests.scripted import ScriptedEngine
from tests.serving import Running, until

ROUTE = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}


def ask(client: httpx.Client, **fields: object) -> httpx.Response:
    """A small valid request, with fields replaced or added."""
    return client.post(ROUTE, json={"input": "Name three rivers.", "max_output_tokens": 4, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of each event, which names it as its line does; numbered without a gap."""
    found = re.findall(r"event: ([\w.]+)\ndata: (.+)\n\n", response.text)
    assert "".join(f"event: {name}\ndata: {data}\n\n" for name, data in found) == response.text
    told = [json.loads(data) for _, data in found]
    assert [data["type"] for data in told] == [name for name, _ in found]
    assert [data["sequence_number"] for data in told] == list(range(len(told)))
    return told


def joined(told: list[dict[str, Any]]) -> list[str]:
    """What each item says by its deltas; the events that end an item say the same."""
    said: list[str] = []
    for data in told:
        if data["type"] == "response.output_item.added":
            assert data["output_index"] == len(said)
            said.append("")
        elif data["type"].endswith(".delta"):
            said[data["output_index"]] += data["delta"]
        elif data["type"].endswith(("text.done", "arguments.done")):
            assert data.get("text", data.get("arguments")) == said[data["output_index"]]
    return said


def plain(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without the ids that are new each time."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


def refused(response: httpx.Response, status: int, param: str | None) -> str:
    """The sentence of a refusal in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    return str(error["message"])


def test_a_whole_answer_has_the_shape(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = ask(client, metadata={"a": "b"}, instructions="Be brief.").json()
    assert answer["id"].startswith("resp_") and answer["object"] == "response"
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = answer["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["status"] == "incomplete"
    assert item["content"] == [
        {"type": "output_text", "text": "word " * 4, "annotations": [], "logprobs": []}
    ]
    prompt = len(engine.started[0].token_ids)
    assert answer["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 4,
    }
    assert answer["metadata"] == {"a": "b"} and answer["instructions"] == "Be brief."
    assert answer["store"] is False and answer["truncation"] == "disabled"
    assert answer["budget"]["prompt_tokens"] == prompt and answer["phases"]["decode_steps"] == 3


def test_a_stream_is_the_same_answer_in_events(client: httpx.Client, engine: ScriptedEngine) -> None:
    for _ in range(2):
        engine.script("one ", "two ", "three")
    whole, told = ask(client).json(), events(ask(client, stream=True))
    assert [data["type"].removeprefix("response.") for data in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 3,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert joined(told) == ["one two three"]
    ended = told[-1]["response"]
    assert plain(ended["output"]) == plain(whole["output"]) and ended["status"] == "completed"
    assert ended["usage"] == whole["usage"] and ended["budget"] == whole["budget"]
    assert {data["response"]["id"] for data in told if "response" in data} == {ended["id"]}
    item_ids = {data.get("item_id") or data["item"]["id"] for data in told[2:-1]}
    assert item_ids == {ended["output"][0]["id"]}


@pytest.mark.parametrize("steps", [("",), ("half ", "said")])
def test_an_answer_without_text_is_still_a_message(
    client: httpx.Client, engine: ScriptedEngine, steps: tuple[str, ...]
) -> None:
    for _ in range(2):
        engine.script(*steps)
    whole, told = ask(client).json(), events(ask(client, stream=True))
    assert plain(told[-1]["response"]["output"]) == plain(whole["output"])
    assert whole["output"][0]["content"][0]["text"] == "".join(steps)


def test_an_answer_that_is_cut_is_incomplete(client: httpx.Client) -> None:
    told = events(ask(client, stream=True))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_an_item_of_its_own(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script('{"ci', 'ty": "Oslo"', "}")
    response = ask(client, **FORCED, max_output_tokens=20, stream=stream)
    if stream:
        told = events(response)
        assert joined(told) == ['{"city": "Oslo"}']
    (item,) = told[-1]["response"]["output"] if stream else response.json()["output"]
    assert item["type"] == "function_call" and item["name"] == "weather" and item["status"] == "completed"
    assert item["arguments"] == '{"city": "Oslo"}' and item["call_id"] and item["id"].startswith("fc_")


def test_text_and_several_calls_are_items_in_their_order(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    calls = [
        CallDelta(0, '{"a":', "call_1", "weather"),
        CallDelta(0, "1}"),
        CallDelta(1, "{}", "call_2", "clock"),
    ]
    engine.script("Let me ", Delta(0, "see.", [2], calls=calls), Delta(0, "", [3], "tool_calls"))
    told = events(ask(client, stream=True, max_output_tokens=9))
    assert joined(told) == ["Let me see.", '{"a":1}', "{}"]
    output = told[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [item["call_id"] for item in output[1:]] == ["call_1", "call_2"]


def test_logprobs_come_with_the_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    told = []
    for stream in (False, True):
        engine.script(
            Delta(0, " hello", [33662], "stop", logprobs=[TokenLogprob(33662, -0.25, ((33662, -0.25),))])
        )
        response = ask(client, stream=stream, **asked)
        body = events(response)[-1]["response"] if stream else response.json()
        told.append(body["output"][0]["content"][0]["logprobs"])
    assert told[0] == told[1]
    (entry,) = told[0]
    assert entry["logprob"] == -0.25 and len(entry["top_logprobs"]) == 1


def test_a_silent_stream_gets_comment_lines(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script(0.7, "late")
    assert ask(client, stream=True).text.count(": keep-alive") >= 2


def test_a_failure_in_mid_stream_is_a_failed_response(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script("half ", EngineUnavailable("The engine has stopped; try again later."))
    last = events(ask(client, stream=True, store=True))[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "engine_unavailable"
    assert client.get(f"{ROUTE}/{last['response']['id']}").status_code == 404
    engine.script(EngineUnavailable("The engine has stopped; try again later."))
    refused(ask(client), 503, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(
    client: httpx.Client, server: Running, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script("word ", 30.0, "never")
    with pytest.raises(httpx.ReadTimeout):
        client.post(ROUTE, json={"input": "Hi", "stream": stream}, timeout=0.3)
    until(lambda: len(engine.aborted) == 1 and server.life.in_flight == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_stored_is_given_again_gone_on_with_and_forgotten(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script("Oslo.")
    response = ask(client, input="Capital of Norway?", instructions="Be brief.", store=True, stream=stream)
    first = events(response)[-1]["response"] if stream else response.json()
    assert client.get(f"{ROUTE}/{first['id']}").json() == first
    said = client.post(f"{ROUTE}/{first['id']}/cancel")
    assert "close its connection" in refused(said, 400, "response_id")
    assert ask(client, input="And its river?", previous_response_id=first["id"]).status_code == 200
    turns = [
        {"role": "user", "content": "Capital of Norway?"},
        {"role": "assistant", "content": "Oslo."},
        {"role": "user", "content": "And its river?"},
    ]
    client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 4})
    assert engine.started[-1].token_ids == engine.started[-2].token_ids
    assert client.delete(f"{ROUTE}/{first['id']}").json()["deleted"] is True
    assert "forgotten" in refused(client.get(f"{ROUTE}/{first['id']}"), 404, "response_id")
    again = ask(client, previous_response_id=first["id"])
    assert "Send the conversation" in refused(again, 400, "previous_response_id")


def test_nothing_is_stored_unless_asked_for(client: httpx.Client) -> None:
    for fields in ({}, {"store": False}):
        assert client.get(f"{ROUTE}/{ask(client, **fields).json()['id']}").status_code == 404


def test_the_oldest_is_forgotten_when_the_room_is_full(serve: Serve) -> None:
    client = serve(response_store_bytes=8000)
    ids = [ask(client, input="x" * 1500, store=True).json()["id"] for _ in range(4)]
    found = [client.get(f"{ROUTE}/{at}").status_code for at in ids]
    assert found[0] == 404 and found[-1] == 200 and sorted(found, reverse=True) == found
    large = ask(client, metadata={"note": "x" * 9000}, store=True)
    assert client.get(f"{ROUTE}/{large.json()['id']}").status_code == 404
    assert client.get(f"{ROUTE}/{ids[-1]}").status_code == 200, "one that is too large takes nobody's room"
    refused(ask(serve(response_store_bytes=0), store=True), 400, "store")


def test_tenants_do_not_see_each_others_responses(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    tables = [
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{hashlib.sha256(name.encode()).hexdigest()}"]\n'
        for name in ("a", "b")
    ]
    file.write_text("".join(tables))
    client = serve(tenants_file=file)
    mine, theirs = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
    body = {"input": "Hi", "max_output_tokens": 2, "store": True}
    at = client.post(ROUTE, json=body, headers=mine).json()["id"]
    assert client.get(f"{ROUTE}/{at}", headers=mine).status_code == 200
    assert client.get(f"{ROUTE}/{at}").status_code == 401
    assert client.get(f"{ROUTE}/{at}", headers=theirs).status_code == 404
    assert client.delete(f"{ROUTE}/{at}", headers=theirs).status_code == 404
    follow = client.post(ROUTE, json={**body, "previous_response_id": at}, headers=theirs)
    refused(follow, 400, "previous_response_id")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "at least one"),
        ({"input": 5}, "input", "text or a list"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "text only",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "item_reference"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "no earlier turn",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
            "JSON text",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"temperature": 3}, "temperature", "temperature"),
        ({"background": True}, "background", "not supported"),
        ({"conversation": "c"}, "conversation", "not supported"),
        ({"service_tier": "flex"}, "service_tier", "not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "Leave reasoning.effort out"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "missing"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
        ({"include": ["file_search_call.results"]}, "include[0]", "only message.output_text.logprobs"),
        ({"top_logprobs": 2}, "top_logprobs", "in include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only function"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "letters"),
        (
            {"tools": [{"type": "function", "name": "a", "parameters": {"type": "array"}}]},
            "tools[0].parameters.type",
            "object",
        ),
        ({"tool_choice": {"type": "function", "name": "a"}}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "only function"),
        ({"tool_choice": 7}, "tool_choice", "tool_choice"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "no stored response"),
        ({"input": "long " * 3000}, "messages", "maximum context length"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_in_the_callers_words(
    client: httpx.Client, fields: dict[str, object], param: str, said: str
) -> None:
    assert said in refused(ask(client, **fields), 400, param)


def test_unknown_fields_are_told_and_strict_refuses_them(client: httpx.Client, serve: Serve) -> None:
    assert ask(client, colour="red").headers["x-ignored-params"] == "colour"
    refused(ask(serve(strict=True), colour="red"), 400, "colour")


def test_history_is_cut_where_the_caller_wants_it(client: httpx.Client) -> None:
    turns = [{"role": role, "content": "old " * 300} for _ in range(4) for role in ("user", "assistant")]
    response = ask(client, input=[*turns, {"role": "user", "content": "And now?"}], truncation="auto")
    assert response.headers["x-budget-action"] == "truncated"
    assert response.json()["budget"]["dropped_messages"] > 0


def test_each_route_has_its_own_line_in_the_counts(client: httpx.Client) -> None:
    at = ask(client, store=True).json()["id"]
    client.get(f"{ROUTE}/{at}")
    client.post(f"{ROUTE}/{at}/cancel")
    told = client.get("/metrics").text
    for route, status in (
        (ROUTE, 2),
        (f"{ROUTE}/{{response_id}}", 2),
        (f"{ROUTE}/{{response_id}}/cancel", 4),
    ):
        assert f'twophase_http_requests_total{{route="{route}",status_class="{status}xx"}} 1.0' in told
