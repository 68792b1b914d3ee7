"""LangChain's ChatOpenAI, by its own documentation: only base URL and key are ours."""

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

FRANCE = "What is the capital of France?"


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """How the weather is in a city."""
    return f"Sunny in {city}"


def whole(model: ChatOpenAI) -> dict[str, Any]:
    answer = model.invoke([SystemMessage("You answer in one sentence."), HumanMessage(FRANCE)])
    return {
        "text": answer.content,
        "usage": answer.usage_metadata,
        "finish": answer.response_metadata["finish_reason"],
    }


def streamed(model: ChatOpenAI) -> dict[str, Any]:
    chunks = list(model.stream(FRANCE, stream_usage=True))
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    return {"pieces": [chunk.content for chunk in chunks], "usage": together.usage_metadata}


async def chained(model: ChatOpenAI) -> list[str]:
    chain = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | model
    answers = await chain.abatch([{"country": "France"}, {"country": "Germany"}])
    return [str(answer.content) for answer in answers]


def called(model: ChatOpenAI) -> dict[str, Any]:
    asked = HumanMessage("How is the weather in Rome?")
    answer = model.bind_tools([weather], tool_choice="weather").invoke([asked])
    (call,) = answer.tool_calls
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    after = model.invoke([asked, answer, result])
    chunks = list(model.bind_tools([weather], tool_choice="any").stream([asked]))
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    return {
        "whole": call["args"],
        "streamed": [call["args"] for call in together.tool_calls],
        "result": result.content,
        "after": after.content,
    }


def structured(model: ChatOpenAI) -> dict[str, str]:
    methods: list[Literal["json_schema", "function_calling"]] = ["json_schema", "function_calling"]
    return {
        method: repr(model.with_structured_output(Capital, method=method).invoke(FRANCE))
        for method in methods
    }


def errors(model: ChatOpenAI) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for how in (model.invoke, lambda text: list(model.stream(text))):
        try:
            how("word " * 9_000)
        except ContextOverflowError as error:
            said["streamed" if said else "whole"] = [
                isinstance(error, openai.BadRequestError),
                error.code,
            ]
    return said


def main(url: str, key: str, _: str) -> None:
    model = ChatOpenAI(
        model="smollm2-135m-instruct", base_url=url, api_key=key, temperature=0, max_completion_tokens=32
    )
    said = {
        "whole": whole(model),
        "streamed": streamed(model),
        "chained": asyncio.run(chained(model)),
        "called": called(model),
        "structured": structured(model),
        "errors": errors(model),
    }
    print(json.dumps(said))


main(*sys.argv[1:])
