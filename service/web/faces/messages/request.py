"""The bodies of `POST /v1/messages` and its count, and the chat request they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.chat.request import ChatRequest, Count, Effort
from service.engine.sampling import INT64_MAX
from service.errors import InvalidValue, ServiceError
from service.web.faces.messages.talk import conversation
from service.web.faces.messages.tools import chat_choice, chat_tools
from service.web.faces.names import Names
from service.web.faces.said import Said
from service.web.wire import JsonObject, checked, known_fields, refuse_combinations

UNHONOURED: Mapping[str, tuple[object, ...]] = {
    "container": (None,),
    "context_management": (None,),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
}
NAMES = Names(
    fields={
        "stop": "stop_sequences",
        "parallel_tool_calls": "tool_choice",
        "reasoning_effort": "output_config.effort",
        "thinking_token_budget": "thinking.budget_tokens",
        "response_format": "output_config.format",
    },
    parts={
        ".function.parameters": ".input_schema",
        ".function": "",
        ".json_schema.schema": ".schema",
        ".json_schema": ".schema",
        ".tool_call_id": ".tool_use_id",
        ".tool_calls": ".content",
        ".reasoning_content": ".content",
    },
    words={
        "tool_choice to required, or name a function": "tool_choice to any, or name a tool",
        "reasoning_effort": "output_config.effort",
        "thinking_token_budget": "thinking.budget_tokens",
        "response_format": "output_config.format",
    },
)
TEXT: JsonObject = {"type": "string"}
BLOCK: JsonObject = {"type": "object", "required": ["type"], "properties": {"type": TEXT}}
BLOCKS: JsonObject = {"type": "array", "minItems": 1, "items": BLOCK}
MESSAGES_SCHEMA: JsonObject = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["user", "assistant", "system"]},
            "content": {"anyOf": [TEXT, BLOCKS]},
        },
    },
}
SYSTEM_SCHEMA: JsonObject = {"anyOf": [TEXT, BLOCKS, {"type": "null"}]}
STRICT = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Thinking(BaseModel):
    """Whether the model thinks first; `enabled` bounds how long, `adaptive` leaves it to the model."""

    model_config = STRICT

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None


class OutputFormat(BaseModel):
    """The JSON schema an answer is held to."""

    model_config = STRICT

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(BaseModel):
    """What the answer is to be like."""

    model_config = STRICT

    effort: Effort | None = None
    format: OutputFormat | None = None


class CountRequest(BaseModel):
    """The body of `POST /v1/messages/count_tokens`: what decides about the prompt."""

    model_config = STRICT

    model: str | None = None
    messages: Annotated[Any, WithJsonSchema(MESSAGES_SCHEMA)]
    system: Annotated[Any, WithJsonSchema(SYSTEM_SCHEMA)] = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None  # without effect: prefixes are cached by themselves


class MessagesRequest(CountRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Count
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    metadata: dict[str, Any] | None = None  # without effect: it describes the caller
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None  # ours
    truncation: Literal["disabled", "auto"] | None = None  # ours


SAME = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k", "priority", "truncation")


def messages_request(
    body: JsonObject, fields: type[CountRequest], *, strict: bool
) -> tuple[ChatRequest, list[str], Names]:
    """The chat request a body stands for, the names of fields nobody knows, and the caller's own names.

    Raises:
        InvalidValue: naming the field.
    """
    wish, ignored = known_fields(fields, body, UNHONOURED, strict=strict)
    said = conversation(wish.system, wish.messages)
    names = NAMES.at([place for _, place in said])
    try:
        request = checked(ChatRequest, _chat_body(wish, said))
        refuse_combinations(request, max_n=1)
    except ServiceError as exc:
        names.tell(exc)
        raise
    return request, ignored, names


def _chat_body(wish: CountRequest, said: list[Said]) -> JsonObject:
    given = wish.model_dump(include=set(SAME) | {"chat_template_kwargs"})
    body = {**given, "messages": [message for message, _ in said], **_continued(said)}
    if isinstance(wish, MessagesRequest) and wish.stop_sequences:
        body["stop"] = wish.stop_sequences
    if wish.tools:
        body["tools"] = chat_tools(wish.tools)
    if wish.tool_choice is not None:
        body |= chat_choice(wish.tool_choice)
    return body | _thinking(wish) | _format(wish.output_config)


def _continued(said: list[Said]) -> JsonObject:
    """A last turn of the assistant's is the beginning of the answer."""
    last, place = said[-1]
    if last["role"] != "assistant":
        return {}
    if "tool_calls" in last:
        raise InvalidValue(f"{place} calls tools; the next turn must hold their results.", param=place)
    return {"continue_final_message": True}


def _thinking(wish: CountRequest) -> JsonObject:
    fields: JsonObject = {}
    if wish.output_config is not None:
        fields["reasoning_effort"] = wish.output_config.effort
    if wish.thinking is not None and wish.thinking.type == "enabled":
        fields["thinking_token_budget"] = wish.thinking.budget_tokens
    if wish.thinking is not None and wish.thinking.type == "disabled":
        fields["reasoning_effort"] = "none"
    return fields


def _format(config: OutputConfig | None) -> JsonObject:
    if config is None or config.format is None:
        return {}
    schema = {"name": "output", "schema": config.format.json_schema}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
