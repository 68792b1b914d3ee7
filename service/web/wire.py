"""Bytes to a chat request: JSON as the standard has it, known fields, sentences for what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.chat.depth import MAX_DEPTH, too_deep
from service.chat.request import UNHONOURED, ChatRequest
from service.errors import InvalidJson, InvalidTemplate, InvalidValue, MissingValue, Unsupported, shown

MAX_NAMED = 16
SEARCHED_BYTES = 2**16
CLEAN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

JsonObject = dict[str, Any]
Fields = TypeVar("Fields", bound=BaseModel)


def parse_object(raw: bytes) -> JsonObject:
    """The JSON object in `raw`. Of repeated keys the last one counts, here and so everywhere.

    Raises:
        InvalidJson: it is none. InvalidValue: it holds NaN or an infinity, naming the field.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        _refuse_infinite(raw)
        raise InvalidJson(f"The body is not valid JSON: {shown(str(exc), 120)}.") from None
    if not isinstance(body, dict):
        raise InvalidJson("The body must be a JSON object.")
    return body


def chat_request(body: JsonObject, *, strict: bool, max_n: int) -> tuple[ChatRequest, list[str]]:
    """A checked request, and the names of fields nobody knows.

    Raises:
        InvalidValue: naming the field.
    """
    if body.get("chat_template") is not None:
        raise InvalidTemplate(
            "chat_template cannot be set by a request; the operator sets it.", param="chat_template"
        )
    request, ignored = known_fields(ChatRequest, body, UNHONOURED, strict=strict, flat=("messages",))
    refuse_combinations(request, max_n)
    return request, ignored


def known_fields(
    fields: type[Fields],
    body: JsonObject,
    unhonoured: Mapping[str, tuple[object, ...]],
    *,
    strict: bool,
    flat: Container[str] = (),
) -> tuple[Fields, list[str]]:
    """The fields of a body, and the names of those nobody knows. What is in `flat` cannot be deep.

    `unhonoured` are fields of the API that are not supported, each with the values that ask for nothing.

    Raises:
        InvalidValue: naming the field.
    """
    known = fields.model_fields.keys() | unhonoured.keys()
    ignored = unknown_names(body, known, strict=strict)
    for name in body.keys() & unhonoured.keys():
        if body[name] not in unhonoured[name]:
            raise Unsupported(f"{name} is not supported here; leave it out.", param=name)
    _refuse_deep(body, flat)
    return checked(fields, body), ignored


def unknown_names(body: JsonObject, known: Container[str], *, strict: bool) -> list[str]:
    """The names of fields nobody knows.

    Raises:
        Unsupported: there is one, and the service is `strict`.
    """
    unknown = [name for name in body if name not in known]
    if strict and unknown:
        raise Unsupported(f"{shown(unknown[0])} is no field of this API.", param=shown(unknown[0]))
    return unknown


def checked(fields: type[Fields], body: JsonObject) -> Fields:
    """The fields a body must have, each of its type and in its range.

    Raises:
        InvalidValue: naming the first that is not.
    """
    try:
        return fields.model_validate(body)
    except ValidationError as exc:
        raise _sentence(exc) from None


def header_names(names: Sequence[str]) -> str:
    """Field names as a header value; what could not stand in a header is left out."""
    return ", ".join(name for name in names[:MAX_NAMED] if CLEAN_NAME.fullmatch(name))


def _refuse_deep(body: JsonObject, flat: Container[str]) -> None:
    """Only free-form fields can be deep; the shape of the others is checked anyway."""
    for name, value in body.items():
        if isinstance(value, dict | list) and name not in flat and too_deep(value):
            raise InvalidValue(f"{shown(name)} is nested deeper than {MAX_DEPTH} levels.", param=shown(name))


def refuse_combinations(request: ChatRequest, max_n: int) -> None:
    """Raises InvalidValue when fields do not go together, or `n` is above `max_n`."""
    if (request.n or 1) > max_n:
        raise InvalidValue(
            f"n is {request.n}; this service makes at most {max_n} answers per request.", param="n"
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidValue("stream_options needs stream to be true.", param="stream_options")
    if request.top_logprobs and not request.logprobs:
        raise InvalidValue("top_logprobs needs logprobs to be true.", param="top_logprobs")
    _refuse_choice(request)


def _refuse_choice(request: ChatRequest) -> None:
    choice, tools = request.choice, request.tools or []
    if choice.forced and not tools:
        raise InvalidValue("tool_choice wants a call, and there are no tools.", param="tool_choice")
    if choice.mode == "named" and choice.name not in {tool["function"]["name"] for tool in tools}:
        raise InvalidValue(
            f"tool_choice names {shown(choice.name)}, which is none of the tools.", param="tool_choice"
        )


def _sentence(exc: ValidationError) -> InvalidValue:
    """What is wrong with the first field that is, in words."""
    error = exc.errors(include_url=False, include_context=False)[0]
    # A key that cannot be is a fault of what it is a key of: the message shows which one.
    param = _path(error["loc"][:-2] if error["loc"][-1:] == ("[key]",) else error["loc"])
    if error["type"] == "missing":
        return MissingValue(f"{param} is missing.", param=param)
    said = error["msg"].removeprefix("Value error, ")
    said = said.replace("Input should be", "must be").replace("Input must be", "must be")
    got = "" if isinstance(error["input"], dict | list) else f", not {shown(error['input'])}"
    return InvalidValue(f"{param} {said}{got}.", param=param)


def _path(parts: tuple[int | str, ...]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{shown(part)}" if path else shown(part)
    return path or "body"


def _refuse_infinite(raw: bytes) -> None:
    """NaN and infinities are no JSON, but a caller who sends one is helped by the field's name."""
    if len(raw) > SEARCHED_BYTES:  # Python's own parser would hold up every stream meanwhile
        return
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return
    for path, value in _leaves(body):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidValue(f"{_path(path)} must be a finite number.", param=_path(path))


def _leaves(value: Any) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    pending: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, dict):
            pending += [((*path, name), child) for name, child in node.items()]
        elif isinstance(node, list):
            pending += [((*path, index), child) for index, child in enumerate(node)]
        else:
            yield path, node
