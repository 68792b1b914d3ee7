"""The body of `POST /v1/responses`, and the chat request it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.chat.request import ChatRequest, Count, Effort
from service.errors import ServiceError, Unsupported, shown
from service.web.faces.names import Names
from service.web.faces.responses.talk import conversation
from service.web.faces.responses.tools import chat_choice, chat_tools
from service.web.faces.said import JsonMap, Said
from service.web.wire import JsonObject, checked, refuse_combinations

UNHONOURED: Mapping[str, tuple[object, ...]] = {
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "service_tier": (None, "auto", "default"),
}
LOGPROBS = "message.output_text.logprobs"
NAMES = Names(
    fields={
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
        "logprobs": "include",
    },
    parts={
        ".function": "",
        ".json_schema.schema": ".schema",
        ".json_schema": "",
        ".tool_call_id": ".call_id",
        ".tool_calls": "",
        ".reasoning_content": ".content",
    },
    words={
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
        "top_logprobs needs logprobs to be true": f"top_logprobs needs {LOGPROBS} in include",
    },
)
INPUT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]}
CHOICE_SCHEMA = {"anyOf": [{"enum": [None, "none", "auto", "required"]}, {"type": "object"}]}
STRICT = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class TextFormat(BaseModel):
    """What the text is held to."""

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def as_chat(self) -> JsonMap:
        """The same in the words of a chat request."""
        if self.type != "json_schema":
            return {"type": self.type}
        named = self.model_dump(
            by_alias=True, include={"name", "description", "json_schema"}, exclude_none=True
        )
        return {"type": self.type, self.type: named}


class TextConfig(BaseModel):
    """What the text is to be like."""

    model_config = STRICT

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BaseModel):
    """How much the model is to think. It is told in so many words, so there is no summary."""

    model_config = STRICT

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class StreamOptions(BaseModel):
    """Padding against eavesdroppers is not made: TLS record sizes are the proxy's."""

    model_config = STRICT

    include_obfuscation: bool | None = None


class ResponsesRequest(BaseModel):
    """The body of `POST /v1/responses`."""

    model_config = STRICT

    model: str | None = None
    input: Annotated[Any, WithJsonSchema(INPUT_SCHEMA)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None

    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[Any, WithJsonSchema(CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None  # ours
    chat_template_kwargs: dict[str, Any] | None = None  # ours

    # Taken and without effect here: they describe the caller, or what other services do with a request.
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


SAME = (
    "model",
    "temperature",
    "top_p",
    "truncation",
    "stream",
    "parallel_tool_calls",
    "top_logprobs",
    "priority",
    "chat_template_kwargs",
)


def responses_request(
    wish: ResponsesRequest, before: list[JsonMap]
) -> tuple[ChatRequest, list[JsonMap], Names]:
    """The chat request a body stands for, its messages but for the instructions, and the caller's names.

    `before` are the messages of the response that this one follows.

    Raises:
        InvalidValue: naming the field.
    """
    earlier = [Said(message, "previous_response_id") for message in before]
    talk = [*earlier, *conversation(wish.input)]
    system = [] if wish.instructions is None else [{"role": "system", "content": wish.instructions}]
    said = [*(Said(message, "instructions") for message in system), *talk]
    names = NAMES.at([place for _, place in said])
    try:
        request = checked(ChatRequest, _chat_body(wish, said))
        refuse_combinations(request, max_n=1)
    except ServiceError as exc:
        names.tell(exc)
        raise
    return request, [message for message, _ in talk], names


def _chat_body(wish: ResponsesRequest, said: list[Said]) -> JsonObject:
    body = wish.model_dump(include=set(SAME))
    body |= {"messages": [message for message, _ in said], "max_tokens": wish.max_output_tokens}
    if wish.text is not None and wish.text.format is not None:
        body["response_format"] = wish.text.format.as_chat()
    if wish.reasoning is not None:
        body["reasoning_effort"] = wish.reasoning.effort
    if wish.tools:
        body["tools"] = chat_tools(wish.tools)
    if wish.tool_choice is not None:
        body["tool_choice"] = chat_choice(wish.tool_choice)
    return body | _included(wish.include or [])


def _included(include: list[str]) -> JsonObject:
    for at, name in enumerate(include):
        if name != LOGPROBS:
            said = f"include[{at}] is {shown(name)}; only {LOGPROBS} is known here."
            raise Unsupported(said, param=f"include[{at}]")
    return {"logprobs": True} if include else {}
