"""Instructor, by its own documentation: only base URL and key are ours."""

import json
import sys
from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODEL = "smollm2-135m-instruct"
FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]


class Capital(BaseModel):
    """Where a country is governed from."""

    country: Literal["France", "Italy"]
    city: Literal["Paris", "Rome"]


def main(url: str, key: str, _: str) -> None:
    said: dict[str, Any] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=url, api_key=key), mode=mode)
        asked: Any = {"model": MODEL, "messages": FRANCE, "temperature": 0}
        capital, answer = client.chat.completions.create_with_completion(response_model=Capital, **asked)
        parts = client.chat.completions.create_partial(response_model=Capital, **asked)
        said[mode.name] = {
            "whole": repr(capital),
            "usage": answer.usage.model_dump(),
            "partial": [part.model_dump() for part in parts],
        }
    print(json.dumps(said))


main(*sys.argv[1:])
