"""Pydantic AI's agents, by their own documentation: only base URL and key are ours."""

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

FRANCE = "What is the capital of France?"


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


def whole(agent: Agent) -> dict[str, Any]:
    first = agent.run_sync(FRANCE)
    second = agent.run_sync("And of Italy?", message_history=first.all_messages())
    return {
        "text": first.output,
        "usage": [first.usage.input_tokens, first.usage.output_tokens],
        "second": second.output,
    }


async def streamed(agent: Agent) -> dict[str, Any]:
    async with agent.run_stream(FRANCE) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return {"pieces": pieces, "usage": [result.usage.input_tokens, result.usage.output_tokens]}


def structured(model: OpenAIChatModel) -> dict[str, str]:
    kinds = {"tool": ToolOutput(Capital), "native": NativeOutput(Capital)}
    return {
        name: repr(Agent(model, output_type=kind).run_sync(FRANCE).output) for name, kind in kinds.items()
    }


def errors(agent: Agent) -> list[str]:
    try:
        agent.run_sync("word " * 9_000)
    except ModelContextWindowExceededError as error:
        return [type(error).__name__, str(error)]
    return []


def main(url: str, key: str, _: str) -> None:
    model = OpenAIChatModel(
        "smollm2-135m-instruct",
        provider=OpenAIProvider(base_url=url, api_key=key),
        settings=ModelSettings(temperature=0, max_tokens=48),
    )
    agent = Agent(model, instructions="You answer in one sentence.")
    said = {
        "whole": whole(agent),
        "streamed": asyncio.run(streamed(agent)),
        "structured": structured(model),
        "errors": errors(agent),
    }
    print(json.dumps(said))


main(*sys.argv[1:])
