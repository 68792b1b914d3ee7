"""From the caller's messages to the turns a template renders: checked, in its form, every text traced.

The rules:
- `developer` becomes `system`, the name by which templates know it.
- Text parts become one text, joined by line feeds, unless the template takes the parts itself for that role.
- Null content beside tool calls becomes the empty text (or stays null for the rare template that shows tool
  calls only then); null content without tool calls is refused.
- Tool-call arguments become the object their JSON describes, unless the template wants the JSON text.
- What is null or an empty list of calls is left out, so that `is defined` means something.
- Text must be encodable, and hold no control token that has to be refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidValue, shown
from service.prompt.sandbox import Turn
from service.prompt.traced import Origin, Traced, whole

ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How one template wants its messages; found out by trying (see `rehearsal`)."""

    roles_with_parts: frozenset[str] = frozenset()
    arguments_as_text: bool = False
    null_beside_calls: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads what callers send: `form` is how the template wants it, `refused` finds what none may type."""

    form: Form = Form()
    refused: re.Pattern[str] | None = None

    def turns(self, messages: Sequence[Message]) -> list[Turn]:
        """The messages as a template sees them.

        Raises:
            InvalidValue: naming the field that cannot be used.
        """
        if not messages:
            raise InvalidValue("messages must hold at least one message.", param="messages")
        return [self._turn(index, message) for index, message in enumerate(messages)]

    def traced(self, value: Any, origin: Origin, param: str) -> Any:
        """`value` with every text in it traced to `origin`; `param` names it in a refusal."""
        try:
            return self._traced(value, origin, param)
        except RecursionError:  # JSON inside a JSON string, whose depth nobody has checked yet
            raise InvalidValue(f"{param} is nested too deeply.", param=param) from None

    def _traced(self, value: Any, origin: Origin, param: str) -> Any:
        if isinstance(value, str):
            return self._text(value, origin, param)
        if isinstance(value, Mapping):
            return {
                self._traced(key, origin, param): self._traced(item, origin, param)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._traced(item, origin, param) for item in value]
        return value

    def _text(self, text: str, origin: Origin, param: str) -> Traced:
        if not text.isascii():
            check_encodable(text, param)
        if self.refused is not None and (found := self.refused.search(text)):
            reason = f"{param} contains {shown(found[0])}, a control token of this model."
            raise InvalidValue(reason, param=param)
        return whole(text, origin)

    def _turn(self, index: int, message: Message) -> Turn:
        where = f"messages[{index}]"
        role = ROLES.get(message.get("role", ""))
        if role is None:
            reason = f"{where}.role is not one of {', '.join(sorted(ROLES))}."
            raise InvalidValue(reason, param=f"{where}.role")
        values: dict[str, Any] = {"role": role, "content": self._content(index, message, role)}
        for name, value in message.items():
            if name not in ("role", "content", "tool_calls") and value is not None:
                values[name] = self.traced(value, Origin(index, "field"), f"{where}.{name}")
        if calls := message.get("tool_calls"):
            values["tool_calls"] = [self._call(index, at, call) for at, call in enumerate(calls)]
        return Turn(index, values)

    def _content(self, index: int, message: Message, role: str) -> Any:
        content, param = message.get("content"), f"messages[{index}].content"
        origin = Origin(index, "content")
        if isinstance(content, str):
            return self._text(content, origin, param)
        if content is None:
            if not message.get("tool_calls"):
                reason = f"{param} is null and there are no tool calls in its place."
                raise InvalidValue(reason, param=param)
            return None if self.form.null_beside_calls else whole("", origin)
        if role in self.form.roles_with_parts:
            return [{"type": "text", "text": self._text(part["text"], origin, param)} for part in content]
        return self._text("\n".join(part["text"] for part in content), origin, param)

    def _call(self, index: int, at: int, call: Message) -> Any:
        param = f"messages[{index}].tool_calls[{at}]"
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(arguments := function.get("arguments"), str):
            parsed = arguments
            if not self.form.arguments_as_text:
                parsed = _object(arguments, f"{param}.function.arguments")
            call = {**call, "function": {**function, "arguments": parsed}}
        return self.traced(call, Origin(index, "tool_calls"), param)


def check_encodable(text: str, param: str) -> None:
    """Refuse half of a surrogate pair, which JSON can write and no encoding can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = f"{param} contains half of a surrogate pair, which is no character."
        raise InvalidValue(reason, param=param) from None


def _object(arguments: str, param: str) -> Any:
    """The arguments a JSON text describes; no text at all stands for none."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidValue(f"{param} is not the JSON text of an object: {shown(arguments)}", param=param)
    return parsed
