"""The messages of a request, checked for shape; what they mean to a template is `service.prompt`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.errors import InvalidValue, MissingValue, Unsupported, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000

Message = dict[str, Any]

_TEXT = {"type": "string"}
_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
}
_FUNCTION = {"type": "object", "required": ["name"], "properties": {"name": _TEXT, "arguments": _TEXT}}
_TOOL_CALL = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {"id": _TEXT, "type": {"const": "function"}, "function": _FUNCTION},
}
MESSAGES_SCHEMA = {  # what is checked below, for those who read `/openapi.json`
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]},
            "name": _TEXT,
            "reasoning_content": _TEXT,
            "tool_calls": {"type": "array", "items": _TOOL_CALL},
            "tool_call_id": _TEXT,
        },
    },
}


def check_messages(value: object) -> list[Message]:
    """Plain messages of known keys: role, content (text, text parts or None), name, tool fields.

    Raises:
        InvalidValue: naming the message and field, such as `messages[3].content`.
    """
    if not isinstance(value, list) or not value:
        raise InvalidValue("messages must be a list of at least one message.", param="messages")
    check_count(value)
    messages = [_message(item, f"messages[{index}]") for index, item in enumerate(value)]
    _check_results(messages)
    return messages


def check_count(messages: Sequence[object], param: str = "messages") -> None:
    """Raises InvalidValue where there are too many, before any of them is looked at."""
    if len(messages) > MAX_MESSAGES:
        raise InvalidValue(f"{param} holds {len(messages)} messages; at most {MAX_MESSAGES}.", param=param)


def _check_results(messages: list[Message]) -> None:
    """A tool's result belongs to a call that has been made before."""
    made: set[str] = set()
    for index, message in enumerate(messages):
        made.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in made:
            param = f"messages[{index}].tool_call_id"
            said = f"{param} is {shown(message['tool_call_id'])}; no earlier turn makes a call of that id."
            raise InvalidValue(said, param=param)


def _message(item: object, at: str) -> Message:
    if not isinstance(item, dict):
        raise InvalidValue(f"{at} must be an object with role and content.", param=at)
    role = item.get("role")
    if role not in ROLES:
        raise InvalidValue(
            f"{at}.role is {shown(role)}; it must be one of {', '.join(ROLES)}.", param=f"{at}.role"
        )
    message: Message = {"role": role, "content": _content(item.get("content"), f"{at}.content")}
    for name in ("name", "reasoning_content"):
        if item.get(name) is not None:
            message[name] = _text(item[name], f"{at}.{name}")
    if item.get("tool_calls"):
        message["tool_calls"] = _tool_calls(item["tool_calls"], role, f"{at}.tool_calls")
    if role == "tool":
        message["tool_call_id"] = _text(item.get("tool_call_id"), f"{at}.tool_call_id")
    if item.get("function_call") is not None:
        raise Unsupported(
            f"{at}.function_call is not supported; use tool_calls.", param=f"{at}.function_call"
        )
    if message["content"] is None and "tool_calls" not in message:
        raise InvalidValue(
            f"{at}.content is missing; only a turn with tool calls may go without.", param=f"{at}.content"
        )
    return message


def _content(value: object, at: str) -> str | list[dict[str, str]] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidValue(f"{at} must be text or a list of text parts.", param=at)
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(value)]


def _part(part: object, at: str) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise InvalidValue(f"{at} must be an object with type and text.", param=at)
    if part.get("type") != "text":
        raise Unsupported(
            f"{at}.type is {shown(part.get('type'))}; this service reads text parts only.", param=f"{at}.type"
        )
    return {"type": "text", "text": _text(part.get("text"), f"{at}.text")}


def _tool_calls(value: object, role: str, at: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise InvalidValue(f"{at}: only an assistant turn can call tools.", param=at)
    if not isinstance(value, list):
        raise InvalidValue(f"{at} must be a list.", param=at)
    return [_tool_call(call, f"{at}[{index}]") for index, call in enumerate(value)]


def _tool_call(call: object, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidValue(f"{at} must be an object with id, type and function.", param=at)
    if call.get("type", "function") != "function":
        raise Unsupported(
            f"{at}.type is {shown(call['type'])}; only function calls are known.", param=f"{at}.type"
        )
    return {
        "id": _text(call.get("id"), f"{at}.id"),
        "type": "function",
        "function": {
            "name": _text(function.get("name"), f"{at}.function.name"),
            "arguments": arguments_text(function.get("arguments", ""), f"{at}.function.arguments"),
        },
    }


def arguments_text(value: object, at: str) -> str:
    """The JSON text of an object, as a tool call's arguments are; no text at all stands for none.

    Raises:
        InvalidValue: naming the field `at`.
    """
    text = _text(value, at)
    try:
        parsed = orjson.loads(text or "{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidValue(f"{at} is not the JSON text of an object: {shown(text)}", param=at)
    return text


def _text(value: object, at: str) -> str:
    if value is None:
        raise MissingValue(f"{at} is missing.", param=at)
    if not isinstance(value, str):
        raise InvalidValue(f"{at} must be text.", param=at)
    return value
