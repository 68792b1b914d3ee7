"""LiteLLM's SDK, by its own documentation: only base URL and key are ours."""

import asyncio
import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import, which otherwise fetches a price list

import litellm
import openai
from pydantic import BaseModel

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
LONG = [{"role": "user", "content": "word " * 9_000}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


def whole(asked: dict[str, Any]) -> dict[str, Any]:
    answer = litellm.completion(messages=FRANCE, **asked)
    return {"text": answer.choices[0].message.content, "usage": answer.usage.model_dump()}


def streamed(asked: dict[str, Any]) -> dict[str, Any]:
    chunks = list(
        litellm.completion(messages=FRANCE, stream=True, stream_options={"include_usage": True}, **asked)
    )
    together = litellm.stream_chunk_builder(chunks, messages=FRANCE)
    return {
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
        "text": together.choices[0].message.content,
        "usage": together.usage.model_dump(),
    }


async def at_once(asked: dict[str, Any]) -> list[str]:
    answers = await asyncio.gather(*(litellm.acompletion(messages=FRANCE, **asked) for _ in range(2)))
    return [answer.choices[0].message.content for answer in answers]


def called(asked: dict[str, Any]) -> dict[str, Any]:
    answer = litellm.completion(messages=FRANCE, tools=[WEATHER], tool_choice="required", **asked)
    calls = answer.choices[0].message.tool_calls
    return {
        "finish": answer.choices[0].finish_reason,
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
    }


def structured(asked: dict[str, Any]) -> str:
    answer = litellm.completion(messages=FRANCE, response_format=Capital, **asked)
    return repr(Capital.model_validate_json(answer.choices[0].message.content))


def errors(asked: dict[str, Any]) -> dict[str, str]:
    def told(**fields: Any) -> str:
        try:
            litellm.completion(**{"messages": FRANCE, **asked, **fields})
        except openai.OpenAIError as error:
            return type(error).__name__
        return ""

    return {
        "too long": told(messages=LONG),
        "too long, streamed": told(messages=LONG, stream=True),
        "no such key": told(api_key="nobody's"),
    }


def main(url: str, key: str, _: str) -> None:
    said: dict[str, Any] = {}
    for provider in ("openai", "hosted_vllm"):
        asked: dict[str, Any] = {
            "model": f"{provider}/smollm2-135m-instruct",
            "api_base": url,
            "api_key": key,
        }
        asked |= {"temperature": 0, "max_tokens": 32}
        said[provider] = {
            "whole": whole(asked),
            "streamed": streamed(asked),
            "async": asyncio.run(at_once(asked)),
            "called": called(asked),
            "structured": structured(asked),
            "errors": errors(asked),
        }
    print(json.dumps(said))


main(*sys.argv[1:])
