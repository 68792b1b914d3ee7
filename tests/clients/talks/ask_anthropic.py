"""The official Anthropic client, by its own documentation: only base URL and key are ours."""

import asyncio
import json
import sys
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
LONG: Any = [{"role": "user", "content": "word " * 9_000}]
ASKED: dict[str, Any] = {"model": "smollm2-135m-instruct", "max_tokens": 48, "messages": FRANCE}
COLD = {"temperature": 0}  # an option of every version of the protocol, if not of the client
WEATHER = {
    "name": "weather",
    "description": "How the weather is in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
        "required": ["city"],
    },
}


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


def whole(client: Anthropic) -> dict[str, Any]:
    answer: Any = client.messages.create(**ASKED, extra_body=COLD, system="You answer in one sentence.")
    counted = client.messages.count_tokens(
        model=ASKED["model"], messages=FRANCE, system="You answer in one sentence."
    )
    return {
        "text": answer.content[0].text,
        "stop": answer.stop_reason,
        "usage": [answer.usage.input_tokens, answer.usage.output_tokens],
        "counted": counted.input_tokens,
        "request_id": answer._request_id,
    }


def streamed(client: Anthropic) -> dict[str, Any]:
    with client.messages.stream(**ASKED, extra_body=COLD, system="You answer in one sentence.") as stream:
        pieces = list(stream.text_stream)
        final: Any = stream.get_final_message()
    usage = [final.usage.input_tokens, final.usage.output_tokens]
    return {"pieces": pieces, "text": final.content[0].text, "usage": usage}


async def at_once(url: str, key: str) -> list[str]:
    async with AsyncAnthropic(base_url=url, api_key=key) as client:
        asked = (client.messages.create(**ASKED, extra_body=COLD) for _ in range(2))
        answers: list[Any] = await asyncio.gather(*asked)
        return [answer.content[0].text for answer in answers]


def called(client: Anthropic) -> dict[str, Any]:
    asked = {**ASKED, "messages": [{"role": "user", "content": "How is the weather in Rome?"}]}
    asked |= {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    answer: Any = client.messages.create(**asked)
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}
    talk = [
        *asked["messages"],
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    after: Any = client.messages.create(**{**ASKED, "messages": talk, "max_tokens": 8})
    with client.messages.stream(**asked) as stream:
        final: Any = stream.get_final_message()
    return {
        "stop": answer.stop_reason,
        "whole": call.input,
        "streamed": final.content[0].input,
        "after": after.content[0].text,
    }


def parsed(client: Anthropic) -> str:
    return repr(client.messages.parse(**ASKED, output_format=Capital).parsed_output)


def errors(client: Anthropic) -> dict[str, list[Any]]:
    def told(client: Anthropic, **fields: Any) -> list[Any]:
        try:
            client.messages.create(**{**ASKED, **fields})
        except anthropic.APIStatusError as error:
            return [type(error).__name__, "prompt is too long" in str(error), bool(error.request_id)]
        return []

    return {
        "too long": told(client, messages=LONG),
        "too long, streamed": told(client, messages=LONG, stream=True),
        "no such model": told(client, model="claude"),
        "no such key": told(client.with_options(api_key="nobody's")),
    }


def main(url: str, key: str, _: str) -> None:
    root = url.removesuffix("/v1")
    client = Anthropic(base_url=root, api_key=key)
    said = {
        "whole": whole(client),
        "streamed": streamed(client),
        "async": asyncio.run(at_once(root, key)),
        "called": called(client),
        "parsed": parsed(client),
        "errors": errors(client),
    }
    print(json.dumps(said))


main(*sys.argv[1:])
