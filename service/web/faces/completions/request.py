"""The body of `POST /v1/completions`, and the requests it stands for: one for each prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from service.chat.request import SharedFields, TextRequest, Written
from service.engine.sampling import INT64_MAX
from service.errors import InvalidValue, MissingValue, shown
from service.web.wire import JsonObject, checked, known_fields, refuse_combinations

DEFAULT_TOKENS = 16  # OpenAI's own, in this API
MAX_LOGPROBS = 5

UNHONOURED: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "prompt_logprobs": (None,),
    "prompt_embeds": (None,),
    "use_beam_search": (None, False),
}

MAX_PROMPTS = 1_000  # before each is looked at; how many are answered is `max_n`'s to say

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": INT64_MAX}}
PROMPT_SCHEMA = {
    "anyOf": [_TEXT, _IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _IDS]}}],
}


def check_prompts(value: object) -> list[Written]:
    """The prompts of a request, each text or token ids.

    Raises:
        InvalidValue: naming the prompt, such as `prompt[1]`.
    """
    if value is None:
        raise MissingValue("prompt is missing.", param="prompt")
    if isinstance(value, list) and len(value) > MAX_PROMPTS and isinstance(value[0], str | list):
        raise InvalidValue(f"prompt holds {len(value)} prompts; at most {MAX_PROMPTS}.", param="prompt")
    if isinstance(value, list) and value and all(isinstance(item, str | list) for item in value):
        return [_prompt(item, f"prompt[{at}]") for at, item in enumerate(value)]
    return [_prompt(value, "prompt")]


def _prompt(value: object, at: str) -> Written:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_id(item) for item in value):
        return value
    if isinstance(value, str | list) and not value:
        raise InvalidValue(f"{at} is empty; send some text.", param=at)
    kind = "a list" if isinstance(value, list) else shown(value)
    raise InvalidValue(f"{at} must be text or a list of token ids, not {kind}.", param=at)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT64_MAX


class CompletionRequest(SharedFields):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[list[Written], BeforeValidator(check_prompts), WithJsonSchema(PROMPT_SCHEMA)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


def completion_requests(
    body: JsonObject, *, strict: bool, max_n: int
) -> tuple[CompletionRequest, list[TextRequest], list[str]]:
    """The body, what it asks for, and the names of fields nobody knows.

    Raises:
        InvalidValue: naming the field.
    """
    wish, ignored = known_fields(CompletionRequest, body, UNHONOURED, strict=strict, flat=("prompt",))
    answers = len(wish.prompt) * (wish.n or 1)
    if len(wish.prompt) > 1 and answers > max_n:
        reason = f"prompt and n ask for {answers} answers; this service makes at most {max_n} per request."
        raise InvalidValue(reason, param="prompt")
    shared = {name: value for name, value in body.items() if name in SharedFields.model_fields}
    if wish.max_tokens is None:
        shared["max_tokens"] = DEFAULT_TOKENS
    if wish.logprobs is not None:
        shared |= {"logprobs": True, "top_logprobs": wish.logprobs}
    requests = [checked(TextRequest, {**shared, **_as_chat(prompt)}) for prompt in wish.prompt]
    refuse_combinations(requests[0], max_n)
    return wish, requests, ignored


def _as_chat(prompt: Written) -> JsonObject:
    """One message that stands for the whole prompt."""
    content = prompt if isinstance(prompt, str) else ""
    return {"messages": [{"role": "user", "content": content}], "prompt": prompt}
