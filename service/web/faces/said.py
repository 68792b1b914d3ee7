"""What the faces' readers of conversations share: a message with its place, and fields that must be there."""

from __future__ import annotations

from typing import Any, NamedTuple

from service.errors import InvalidValue, MissingValue

JsonMap = dict[str, Any]


class Said(NamedTuple):
    """A message of the chat request, and the caller's path to it."""

    message: JsonMap
    place: str


def string(value: object, at: str) -> str:
    """Text that must be there.

    Raises:
        InvalidValue: it is not, or is no text.
    """
    if value is None:
        raise MissingValue(f"{at} is missing.", param=at)
    if not isinstance(value, str):
        raise InvalidValue(f"{at} must be text.", param=at)
    return value


def joined(texts: list[JsonMap]) -> str | list[JsonMap] | None:
    """Text parts as a message's content: one part is the same as its text."""
    if len(texts) == 1:
        return str(texts[0]["text"])
    return texts or None
