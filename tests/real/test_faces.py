"""The other faces on the real engine and the embedded model, with the official clients as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.real.conftest import Served

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m-instruct"
FRANCE = "What is the capital of France?"
GREEDY = {"temperature": 0}  # which this client has no name for
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def openai_client(served: Served) -> Iterator[openai.OpenAI]:
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(served: Served) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=served.url, api_key="none") as client:
        yield client


def test_a_text_goes_on_streamed_and_whole(openai_client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": ["The capital of France is", "One, two, three,"],
        "max_tokens": 6,
        "temperature": 0,
    }
    whole = openai_client.completions.create(**asked)
    said = {0: "", 1: ""}
    for chunk in openai_client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.text
    assert said == {choice.index: choice.text for choice in whole.choices}
    assert "Paris" in said[0] and "four" in said[1]
    assert whole.usage is not None and whole.usage.completion_tokens == 12


def test_logprobs_of_a_text_are_where_its_tokens_are(openai_client: openai.OpenAI) -> None:
    answer = openai_client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0, logprobs=2
    )
    told = answer.choices[0].logprobs
    assert told is not None and told.tokens is not None and told.text_offset is not None
    for token, at in zip(told.tokens, told.text_offset, strict=True):
        assert answer.choices[0].text[at:].startswith(token)


def test_a_message_is_streamed_and_whole(anthropic_client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 40,
        "extra_body": GREEDY,
        "messages": [{"role": "user", "content": FRANCE}],
    }
    whole = anthropic_client.messages.create(**asked)
    with anthropic_client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text" and "Paris" in block.text and "".join(pieces) == block.text
    assert len(pieces) > 3 and streamed.stop_reason == whole.stop_reason == "end_turn"
    used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    counted = anthropic_client.messages.count_tokens(model=MODEL, messages=asked["messages"])
    assert counted.input_tokens == used and streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_forced_call_goes_through_messages_and_back(anthropic_client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 60,
        "extra_body": GREEDY,
        "tools": [{"name": "weather", "description": "Weather of a city", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "weather"},
    }
    turns: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    whole = anthropic_client.messages.create(**asked, messages=turns)
    with anthropic_client.messages.stream(**asked, messages=turns) as stream:
        streamed = stream.get_final_message()
    (call,), (again,) = whole.content, streamed.content
    assert call.type == again.type == "tool_use" and call.input == again.input
    assert isinstance(call.input, dict) and call.input["city"] in ("Paris", "Oslo")
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
    turns += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    asked["tool_choice"] = {"type": "any"}
    assert anthropic_client.messages.create(**asked, messages=turns).stop_reason == "tool_use"


def test_the_string_that_ends_a_message_is_told(anthropic_client: anthropic.Anthropic) -> None:
    answer = anthropic_client.messages.create(
        model=MODEL,
        max_tokens=40,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": FRANCE}],
        stop_sequences=["France is"],
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "France is")


def test_anthropics_client_gets_its_typed_errors(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="There is no model other"):
        anthropic_client.messages.create(
            model="other", max_tokens=4, messages=[{"role": "user", "content": "x"}]
        )
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is"):
        anthropic_client.messages.create(
            model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "long " * 20_000}]
        )


def test_a_response_is_streamed_whole_stored_and_gone_on_with(openai_client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": FRANCE, "temperature": 0, "max_output_tokens": 40}
    whole = openai_client.responses.create(**asked, store=True)
    with openai_client.responses.stream(**asked) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert "Paris" in whole.output_text and said == streamed.output_text == whole.output_text
    assert streamed.status == whole.status == "completed"
    assert whole.usage is not None and streamed.usage is not None
    assert whole.usage.total_tokens == streamed.usage.total_tokens
    assert openai_client.responses.retrieve(whole.id).output_text == whole.output_text
    after = openai_client.responses.create(
        model=MODEL, input="Say it again.", previous_response_id=whole.id, max_output_tokens=8
    )
    assert after.usage is not None and after.usage.input_tokens > whole.usage.total_tokens
    openai_client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(whole.id)


def test_a_response_calls_a_function_and_keeps_to_a_schema(openai_client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    asked: dict[str, Any] = {"model": MODEL, "input": "Weather in Oslo?", "temperature": 0}
    whole = openai_client.responses.create(**asked, tools=[tool], tool_choice="required")
    with openai_client.responses.stream(**asked, tools=[tool], tool_choice="required") as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    call, again = whole.output[0], streamed.output[0]
    assert call.type == again.type == "function_call" and call.arguments == again.arguments
    assert call.name == "weather" and json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    held: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    answer = openai_client.responses.create(**asked, text=held, max_output_tokens=40)
    assert json.loads(answer.output_text)["city"] in ("Paris", "Oslo")


def test_all_faces_say_the_same(web: httpx.Client) -> None:
    turns = [{"role": "user", "content": FRANCE}]
    common = {"messages": turns, "temperature": 0, "max_tokens": 40}
    chat = web.post("/v1/chat/completions", json=common).json()
    message = web.post("/v1/messages", json=common).json()
    response = web.post("/v1/responses", json={"input": FRANCE, "temperature": 0}).json()
    text = chat["choices"][0]["message"]["content"]
    assert message["content"][0]["text"] == text
    assert response["output"][0]["content"][0]["text"] == text
    budgets = [answer["budget"]["prompt_tokens"] for answer in (chat, message, response)]
    assert budgets == [37, 37, 37]
