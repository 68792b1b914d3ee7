"""The official OpenAI client, by its own documentation: only base URL and key are ours."""

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

MODEL = "smollm2-135m-instruct"
FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
LONG: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 9_000}]


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


class Weather(BaseModel):
    """How the weather is in a city."""

    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2, 3]


def whole(client: OpenAI) -> dict[str, Any]:
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    assert answer.usage is not None
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "usage": answer.usage.model_dump(),
        "request_id": answer._request_id,
    }


def streamed(client: OpenAI) -> dict[str, Any]:
    stream = client.chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    usage = chunks[-1].usage
    assert usage is not None
    return {
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
        "usage": usage.model_dump(),
    }


async def at_once(url: str, key: str) -> tuple[str, str]:
    async with AsyncOpenAI(base_url=url, api_key=key) as client:

        async def read() -> str:
            stream = await client.chat.completions.create(
                model=MODEL, messages=FRANCE, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return await asyncio.gather(read(), read())


def parsed(client: OpenAI) -> dict[str, Any]:
    answer = client.chat.completions.parse(model=MODEL, messages=FRANCE, response_format=Capital)
    capital = answer.choices[0].message.parsed
    with client.chat.completions.stream(model=MODEL, messages=FRANCE, response_format=Capital) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0].message.parsed
    return {"whole": repr(capital), "streamed": repr(streamed), "events": sorted(kinds)}


def called(client: OpenAI) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
        "tools": [openai.pydantic_function_tool(Weather)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    answer = client.chat.completions.parse(**asked)
    (call,) = answer.choices[0].message.tool_calls or []
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        (again,) = stream.get_final_completion().choices[0].message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}
    talk: Any = [*asked["messages"], answer.choices[0].message, result]
    after = client.chat.completions.create(model=MODEL, messages=talk, max_tokens=8)
    return {
        "whole": repr(call.function.parsed_arguments),
        "streamed": repr(again.function.parsed_arguments),
        "finish": answer.choices[0].finish_reason,
        "after": after.choices[0].message.content,
    }


def raw(client: OpenAI) -> dict[str, Any]:
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=FRANCE, max_tokens=4)
    return {"headers": dict(answer.headers), "text": answer.parse().choices[0].message.content}


def models(client: OpenAI) -> list[str]:
    return [client.models.retrieve(model.id).id for model in client.models.list()]


def errors(client: OpenAI) -> dict[str, list[Any]]:
    def told(client: OpenAI, **fields: Any) -> list[Any]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": FRANCE, **fields})
        except openai.APIStatusError as error:
            return [type(error).__name__, error.code, error.param, bool(error.request_id)]
        return []

    return {
        "too long": told(client, messages=LONG),
        "too long, streamed": told(client, messages=LONG, stream=True),
        "no such model": told(client, model="gpt-4"),
        "no such key": told(client.with_options(api_key="nobody's")),
        "wrong value": told(client, temperature=3),
    }


def patient(url: str, key: str) -> dict[str, Any]:
    """Two requests of somebody who may have one at once: the first is ended when the second is refused."""
    first = OpenAI(base_url=url, api_key=key).chat.completions.create(
        model=MODEL, messages=FRANCE, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
    )
    seen = []

    def note(response: Any) -> None:
        seen.append([response.status_code, response.headers.get("retry-after")])
        first.close()

    client = OpenAI(
        base_url=url, api_key=key, http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]})
    )
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    return {"seen": seen, "text": answer.choices[0].message.content}


def main(url: str, key: str, key_for_one_at_once: str) -> None:
    client = OpenAI(base_url=url, api_key=key)
    said = {
        "whole": whole(client),
        "streamed": streamed(client),
        "async": asyncio.run(at_once(url, key)),
        "parsed": parsed(client),
        "called": called(client),
        "raw": raw(client),
        "models": models(client),
        "errors": errors(client),
        "patient": patient(url, key_for_one_at_once),
    }
    print(json.dumps(said))


main(*sys.argv[1:])
