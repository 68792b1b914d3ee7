"""Structured output and tool calls: whatever the embedded model makes of them, they parse."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.real.conftest import Served
from tests.sse import read

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m-instruct"
TRIES = 100
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Is it raining in Oslo?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "rain",
        "parameters": {
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/place"}},
            "required": ["at"],
            "$defs": {"place": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "now",
        "parameters": {"type": "object", "properties": {"h": {"type": "boolean"}}, "required": ["h"]},
    },
}
NAMED: Any = {"type": "function", "function": {"name": "now"}}


class Verdict(pydantic.BaseModel):
    """A short answer."""

    rain: bool
    sure: Literal["yes", "no"]


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    """The official client, pointed at the service."""
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=2, timeout=120)


def often(ask: Callable[[bool], None], tries: int = TRIES) -> None:
    """Many at once, every other one streamed."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda at: ask(at % 2 == 0), range(tries)))


def calls_of(client: openai.OpenAI, stream: bool, **fields: Any) -> tuple[list[tuple[str, str]], str | None]:
    """The calls of one answer, put together by the client if they come streamed; why it ended."""
    request = {"model": MODEL, "messages": ASKED, "max_tokens": 100, **fields}
    if not stream:
        choice = client.chat.completions.create(**request).choices[0]
        assert choice.message.content is None
    else:
        with client.chat.completions.stream(**request) as events:
            choice = events.get_final_completion().choices[0]
    made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return made, choice.finish_reason


def test_a_required_call_parses_every_time(client: openai.OpenAI) -> None:
    def one(stream: bool) -> None:
        calls, finish = calls_of(
            client, stream, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False
        )
        ((name, arguments),) = calls
        given = json.loads(arguments)
        assert given["at"] in ("Oslo", "Rome") if name == "rain" else isinstance(given["h"], bool)
        assert finish == "tool_calls" and not any(c.isspace() for c in arguments)

    often(one)


def test_a_named_call_parses_every_time(client: openai.OpenAI) -> None:
    def one(stream: bool) -> None:
        calls, finish = calls_of(client, stream, tools=[WEATHER, CLOCK], tool_choice=NAMED)
        assert [name for name, _ in calls] == ["now"] and finish == "tool_calls"
        assert json.loads(calls[0][1]).keys() == {"h"}

    often(one)


def test_a_schema_is_kept_to_every_time(client: openai.OpenAI) -> None:
    def one(stream: bool) -> None:
        fields: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 60}
        if stream:
            with client.chat.completions.stream(**fields, response_format=Verdict) as events:
                assert isinstance(events.get_final_completion().choices[0].message.parsed, Verdict)
        else:
            said = client.chat.completions.parse(**fields, response_format=Verdict)
            assert isinstance(said.choices[0].message.parsed, Verdict)

    often(one)


def test_any_json_object_parses_unless_its_budget_cuts_it_off(web: httpx.Client) -> None:
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 40, "stop": None}
    ended: list[str] = []

    def one(stream: bool) -> None:
        request = {"messages": ASKED, "stream": stream, **fields}
        response = web.post("/v1/chat/completions", json=request)
        if stream:
            text, finish = (events := read(response)).text(), events.finishes()[0]
        else:
            choice = response.json()["choices"][0]
            text, finish = choice["message"]["content"], choice["finish_reason"]
        ended.append(finish)
        if finish == "stop":
            assert isinstance(json.loads(text), dict)
        else:
            assert finish == "length" and text.startswith("{")

    often(one)
    assert "stop" in ended


def test_the_official_client_parses_tools(client: openai.OpenAI) -> None:
    said = client.chat.completions.parse(
        model=MODEL,
        messages=ASKED,
        tools=[openai.pydantic_function_tool(Verdict)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    calls = said.choices[0].message.tool_calls
    assert calls and isinstance(calls[0].function.parsed_arguments, Verdict)


def test_several_answers_have_calls_of_their_own(client: openai.OpenAI) -> None:
    said = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[CLOCK], tool_choice=NAMED, n=3)
    ids = [call.id for choice in said.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 3


def test_a_stream_of_calls_has_openais_shape(web: httpx.Client) -> None:
    request = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required", "stream": True}
    chunks = read(web.post("/v1/chat/completions", json={**request, "parallel_tool_calls": False})).chunks
    first, *others, last = [chunk["choices"][0] for chunk in chunks]
    (call,) = first["delta"]["tool_calls"]
    assert first["delta"]["role"] == "assistant" and first["delta"]["content"] is None
    assert call["index"] == 0 and call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"]["name"] == "rain"
    for choice in others:
        (piece,) = choice["delta"]["tool_calls"]
        assert piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"}
    assert last["finish_reason"] == "tool_calls"


def test_a_call_its_budget_cuts_off_stays_a_call(client: openai.OpenAI) -> None:
    for stream in (False, True):
        calls, finish = calls_of(client, False, tools=[CLOCK], tool_choice=NAMED, max_tokens=2)
        assert calls[0][0] == "now" and finish == "length", stream
        calls, finish = calls_of(client, False, tools=[CLOCK], tool_choice="required", max_tokens=2)
        assert calls == [("now", "")] and finish == "length", stream


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "[a-"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"type": "nonsense"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        (
            {"tools": [CLOCK, {**CLOCK, "function": {"name": "x", "parameters": {"$ref": "#/nowhere"}}}]},
            "tools[1].function.parameters",
        ),
        ({"tools": [CLOCK], "tool_choice": "auto"}, "tools"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "integer", "multipleOf": 3}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(
    web: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        request = {"messages": ASKED, "tool_choice": "required" if "tools" in fields else None, **fields}
        for route in ("/v1/chat/completions", "/v1/chat/completions/explain"):
            response = web.post(route, json={**request, "stream": stream})
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == param


def test_other_forms_hold(web: httpx.Client) -> None:
    def said(**constraint: object) -> str:
        request = {"messages": ASKED, "structured_outputs": constraint, "max_tokens": 40}
        return str(web.post("/v1/chat/completions", json=request).json()["choices"][0]["message"]["content"])

    assert said(choice=["rain", 'su"n']) in ("rain", 'su"n')
    assert set(said(regex="[ab]{3}")) <= {"a", "b"}
    assert said(grammar='root ::= "wet" | "dry"') in ("wet", "dry")
    assert said(structural_tag={"type": "structural_tag", "format": {"type": "const_string", "value": "x"}})
    assert json.loads(said(json={"enum": [1, 2]})) in (1, 2)


def test_an_expensive_schema_stops_no_stream(web: httpx.Client) -> None:
    """Twenty that take a second each to compile, most of them refused or made to wait, beside one stream."""
    gaps: list[float] = []
    done = threading.Event()

    def bystander() -> None:
        request = {"messages": ASKED, "stream": True, "ignore_eos": True, "max_tokens": 400}
        with web.stream("POST", "/v1/chat/completions", json=request) as response:
            last = time.monotonic()
            for line in response.iter_lines():
                if line.startswith("data:"):
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()
                if done.is_set():
                    return

    with ThreadPoolExecutor(9) as pool:
        watching = pool.submit(bystander)

        def explode(at: int) -> int:
            regex = {"regex": f"(.{{1,{2000 + at}}}x){{1,{900 + at}}}"}
            request = {"messages": ASKED, "structured_outputs": regex, "max_tokens": 1}
            return web.post("/v1/chat/completions", json=request).status_code

        answered = list(pool.map(explode, range(4)))
        done.set()
        watching.result()
    assert set(answered) <= {200, 400, 429}
    print(f"worst gap {max(gaps[1:]):.3f} s, median {sorted(gaps)[len(gaps) // 2]:.3f} s, {answered}")
    assert web.get("/readyz").status_code == 200
