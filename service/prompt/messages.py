"""From the caller's messages to the turns a template renders: checked, in its form, every text traced.

The rules:
- `developer` becomes `system`, the name by which templates know it.
- Text parts become one text, joined by line feeds, unless the template takes the parts itself for that role.
- Null content beside tool calls becomes the empty text (or stays null for the rare template that shows tool
  calls only then); null content without tool calls is refused.
- Tool-call arguments become the object their JSON describes, unless the template wants the JSON text.
- What is null or an empty list of calls is left out, so that `is defined` means something.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidValue, shown
from service.prompt.sandbox import Turn
from service.prompt.traced import Origin, whole

ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How one template wants its messages; found out by trying (see `rehearsal`)."""

    roles_with_parts: frozenset[str] = frozenset()
    arguments_as_text: bool = False
    null_beside_calls: bool = False


def turns(messages: Sequence[Message], form: Form) -> list[Turn]:
    """The messages as a template sees them.

    Raises:
        InvalidValue: naming the field that cannot be used.
    """
    if not messages:
        raise InvalidValue("messages must hold at least one message.", param="messages")
    return [_turn(index, message, form) for index, message in enumerate(messages)]


def traced(value: Any, origin: Origin, param: str) -> Any:
    """`value` with every text in it traced to `origin`; `param` names it in a refusal."""
    if isinstance(value, str):
        return whole(encodable(value, param), origin)
    if isinstance(value, Mapping):
        return {traced(key, origin, param): traced(item, origin, param) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [traced(item, origin, param) for item in value]
    return value


def _turn(index: int, message: Message, form: Form) -> Turn:
    where = f"messages[{index}]"
    role = ROLES.get(message.get("role", ""))
    if role is None:
        raise InvalidValue(f"{where}.role is not one of {', '.join(sorted(ROLES))}.", param=f"{where}.role")
    calls = message.get("tool_calls")
    values: dict[str, Any] = {"role": role, "content": _content(index, message, role, form)}
    for name, value in message.items():
        if name not in ("role", "content", "tool_calls") and value is not None:
            values[name] = traced(value, Origin(index, "field"), f"{where}.{name}")
    if calls:
        values["tool_calls"] = [_call(index, at, call, form) for at, call in enumerate(calls)]
    return Turn(index, values)


def _content(index: int, message: Message, role: str, form: Form) -> Any:
    content, origin, param = message.get("content"), Origin(index, "content"), f"messages[{index}].content"
    if isinstance(content, str):
        return whole(encodable(content, param), origin)
    if content is None:
        if not message.get("tool_calls"):
            raise InvalidValue(f"{param} is null and there are no tool calls in its place.", param=param)
        return None if form.null_beside_calls else whole("", origin)
    if role in form.roles_with_parts:
        return [{"type": "text", "text": traced(part["text"], origin, param)} for part in content]
    return whole(encodable("\n".join(part["text"] for part in content), param), origin)


def _call(index: int, at: int, call: Message, form: Form) -> dict[str, Any]:
    origin, param = Origin(index, "tool_calls"), f"messages[{index}].tool_calls[{at}]"
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(arguments := function.get("arguments"), str):
        parsed = arguments if form.arguments_as_text else _object(arguments, f"{param}.function.arguments")
        call = {**call, "function": {**function, "arguments": parsed}}
    made: dict[str, Any] = _bounded(call, origin, param)
    return made


def _object(arguments: str, param: str) -> Any:
    """The arguments a JSON text describes; no text at all stands for none."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidValue(f"{param} is not the JSON text of an object: {shown(arguments)}", param=param)
    return parsed


def _bounded(value: Any, origin: Origin, param: str) -> Any:
    """`traced`, for JSON inside a JSON string, whose depth nobody has checked yet."""
    try:
        return traced(value, origin, param)
    except RecursionError:
        raise InvalidValue(f"{param} is nested too deeply.", param=param) from None


def encodable(text: str, param: str) -> str:
    """`text`, if it can be encoded at all: half a surrogate pair cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            reason = f"{param} contains half of a surrogate pair, which is no character."
            raise InvalidValue(reason, param=param) from None
    return text
