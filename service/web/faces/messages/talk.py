"""Turns made of content blocks, to the messages of a chat request, each with the place it comes from.

A turn of the user's with results of tools becomes a message for each result, and one for the text that
follows. One block of text is the same as the text itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from service.chat.messages import check_count
from service.errors import InvalidValue, MissingValue, Unsupported, shown
from service.web.faces.said import JsonMap, Said, joined, string

ROLES = ("user", "assistant", "system")


def conversation(system: object, messages: object) -> list[Said]:
    """All messages, the system's first.

    Raises:
        InvalidValue: naming the block, such as `messages[2].content[0].type`.
    """
    if messages is None:
        raise MissingValue("messages is missing.", param="messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidValue("messages must be a list of at least one message.", param="messages")
    check_count(messages)
    said = [] if system is None else [Said({"role": "system", "content": _texts(system, "system")}, "system")]
    for index, turn in enumerate(messages):
        said += _turn(turn, f"messages[{index}]")
    return said


def _turn(turn: object, at: str) -> Iterator[Said]:
    if not isinstance(turn, dict):
        raise InvalidValue(f"{at} must be an object with role and content.", param=at)
    role, content = turn.get("role"), turn.get("content")
    if role not in ROLES:
        said = f"{at}.role is {shown(role)}; it must be one of {', '.join(ROLES)}."
        raise InvalidValue(said, param=f"{at}.role")
    if content is None:
        raise MissingValue(f"{at}.content is missing.", param=f"{at}.content")
    if isinstance(content, str):
        return iter([Said({"role": role, "content": content}, at)])
    if role == "system":
        return iter([Said({"role": role, "content": _texts(content, f"{at}.content")}, at)])
    blocks = list(_blocks(content, f"{at}.content"))
    return _asked(blocks, at) if role == "user" else iter([_answered(blocks, at)])


def _asked(blocks: list[tuple[JsonMap, str]], at: str) -> Iterator[Said]:
    texts: list[JsonMap] = []
    for block, place in blocks:
        if block["type"] == "text":
            texts.append(_text(block, place))
            continue
        if block["type"] != "tool_result":
            raise _unknown(block, place, "text and tool_result")
        if texts:
            yield Said({"role": "user", "content": joined(texts)}, at)
            texts = []
        yield Said(_result(block, place), place)
    if texts:
        yield Said({"role": "user", "content": joined(texts)}, at)


def _answered(blocks: list[tuple[JsonMap, str]], at: str) -> Said:
    texts: list[JsonMap] = []
    thoughts: list[str] = []
    calls: list[JsonMap] = []
    for block, place in blocks:
        if block["type"] == "text":
            texts.append(_text(block, place))
        elif block["type"] == "thinking":
            thoughts.append(string(block.get("thinking"), f"{place}.thinking"))
        elif block["type"] == "tool_use":
            calls.append(_call(block, place))
        else:
            raise _unknown(block, place, "text, thinking and tool_use")
    message: dict[str, Any] = {"role": "assistant", "content": joined(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif not texts:
        raise InvalidValue(f"{at}.content must hold text or tool_use.", param=f"{at}.content")
    return Said(message, at)


def _result(block: JsonMap, at: str) -> dict[str, Any]:
    """Templates have no place for `is_error`: the text itself tells."""
    content = block.get("content")
    return {
        "role": "tool",
        "tool_call_id": string(block.get("tool_use_id"), f"{at}.tool_use_id"),
        "content": "" if content is None else _texts(content, f"{at}.content"),
    }


def _call(block: JsonMap, at: str) -> JsonMap:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidValue(f"{at}.input must be an object.", param=f"{at}.input")
    function = {
        "name": string(block.get("name"), f"{at}.name"),
        "arguments": orjson.dumps(arguments).decode(),
    }
    return {"id": string(block.get("id"), f"{at}.id"), "type": "function", "function": function}


def _texts(value: object, at: str) -> str | list[JsonMap] | None:
    """Text, or blocks of nothing else."""
    if isinstance(value, str):
        return value
    blocks = []
    for block, place in _blocks(value, at):
        if block["type"] != "text":
            raise _unknown(block, place, "text")
        blocks.append(_text(block, place))
    return joined(blocks)


def _blocks(value: object, at: str) -> Iterator[tuple[JsonMap, str]]:
    if not isinstance(value, list):
        raise InvalidValue(f"{at} must be text or a list of content blocks.", param=at)
    if not value:
        raise InvalidValue(f"{at} must hold at least one content block.", param=at)
    for index, block in enumerate(value):
        place = f"{at}[{index}]"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidValue(f"{place} must be an object with a type.", param=place)
        yield block, place


def _text(block: JsonMap, at: str) -> JsonMap:
    return {"type": "text", "text": string(block.get("text"), f"{at}.text")}


def _unknown(block: JsonMap, at: str, known: str) -> Unsupported:
    said = f"{at}.type is {shown(block['type'])}; this service reads {known} here."
    return Unsupported(said, param=f"{at}.type")
