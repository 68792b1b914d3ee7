"""Items to the messages of a chat request, each with the place it comes from.

What an assistant thought, said and called stands in items one behind the other, and is one turn.
"""

from __future__ import annotations

from service.chat.messages import arguments_text, check_count
from service.errors import InvalidValue, MissingValue, Unsupported, shown
from service.web.faces.said import JsonMap, Said, joined, string

ROLES = ("user", "assistant", "system", "developer")
TEXTS = ("input_text", "output_text", "text")


def conversation(given: object) -> list[Said]:
    """The messages that `input` stands for.

    Raises:
        InvalidValue: naming the item, such as `input[2].content[0].type`.
    """
    if given is None:
        raise MissingValue("input is missing.", param="input")
    if isinstance(given, str):
        return [Said({"role": "user", "content": given}, "input")]
    if not isinstance(given, list) or not given:
        raise InvalidValue("input must be text or a list of at least one item.", param="input")
    check_count(given, "input")
    talk = _Talk()
    for index, item in enumerate(given):
        talk.add(item, f"input[{index}]")
    return talk.said


class _Talk:
    def __init__(self) -> None:
        self.said: list[Said] = []
        self._turn: JsonMap | None = None  # the assistant's, to which items may still be added

    def add(self, item: object, at: str) -> None:
        if not isinstance(item, dict):
            raise InvalidValue(f"{at} must be an object.", param=at)
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, at)
        elif kind == "function_call":
            self._call(item, at)
        elif kind == "function_call_output":
            self._say(_result(item, at), at)
        elif kind == "reasoning":
            self._thought(item, at)
        else:
            said = (
                f"{at}.type is {shown(kind)}; this service reads message, function_call, "
                "function_call_output and reasoning."
            )
            raise Unsupported(said, param=f"{at}.type")

    def _message(self, item: JsonMap, at: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            said = f"{at}.role is {shown(role)}; it must be one of {', '.join(ROLES)}."
            raise InvalidValue(said, param=f"{at}.role")
        content = _texts(item.get("content"), f"{at}.content")
        if role != "assistant":
            self._say({"role": role, "content": content}, at)
        elif self._turn is not None and not self._turn["content"] and "tool_calls" not in self._turn:
            self._turn["content"] = content
        else:
            self._turn = self._say({"role": role, "content": content}, at)

    def _call(self, item: JsonMap, at: str) -> None:
        function = {
            "name": string(item.get("name"), f"{at}.name"),
            "arguments": arguments_text(item.get("arguments"), f"{at}.arguments"),
        }
        call_id = string(item.get("call_id"), f"{at}.call_id")
        call = {"id": call_id, "type": "function", "function": function}
        if self._turn is None:
            self._turn = self._say({"role": "assistant", "content": None}, at)
        self._turn["content"] = self._turn["content"] or None
        self._turn.setdefault("tool_calls", []).append(call)

    def _thought(self, item: JsonMap, at: str) -> None:
        """Only what was thought in so many words: no summary, and nothing that is encrypted."""
        parts = item.get("content") or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise InvalidValue(f"{at}.content must be a list of parts.", param=f"{at}.content")
        thought = "".join(string(part.get("text"), f"{at}.content[{i}].text") for i, part in enumerate(parts))
        if thought:
            self._turn = self._say({"role": "assistant", "content": "", "reasoning_content": thought}, at)

    def _say(self, message: JsonMap, at: str) -> JsonMap:
        self._turn = None
        self.said.append(Said(message, at))
        return message


def _result(item: JsonMap, at: str) -> JsonMap:
    return {
        "role": "tool",
        "tool_call_id": string(item.get("call_id"), f"{at}.call_id"),
        "content": _texts(item.get("output"), f"{at}.output"),
    }


def _texts(value: object, at: str) -> str | list[JsonMap] | None:
    if value is None:
        raise MissingValue(f"{at} is missing.", param=at)
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidValue(f"{at} must be text or a list of text parts.", param=at)
    return joined([_part(part, f"{at}[{index}]") for index, part in enumerate(value)])


def _part(part: object, at: str) -> JsonMap:
    if not isinstance(part, dict):
        raise InvalidValue(f"{at} must be an object with type and text.", param=at)
    if part.get("type") not in TEXTS:
        said = f"{at}.type is {shown(part.get('type'))}; this service reads text only."
        raise Unsupported(said, param=f"{at}.type")
    return {"type": "text", "text": string(part.get("text"), f"{at}.text")}
