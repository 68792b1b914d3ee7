"""Marks of how a request begins: two requests with an equal mark have the same prompt up to there.

Prompts are not rendered here, so a mark is made from what a prompt is made of, in whole blocks from the
beginning, as engines keep their caches: the tools, the system's words and the turns, in this order. A request
that goes on from an earlier one has all marks of that, and more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

SEPARATOR = ","
BLOCK_BYTES = 512  # some 128 tokens
MOST_BLOCKS = 64  # requests that are alike so far are of one conversation or about one document
LEAD = ("tools", "system", "instructions")
TURNS = ("messages", "input", "prompt")  # as the APIs call them


def marks(group: str, body: Mapping[str, Any], session: str = "") -> list[str]:
    """The longest first, before them the session where the caller names one; none for a short request."""
    hashed = hashlib.blake2b(orjson.dumps([group, body.get("model")]), digest_size=8)
    found = []
    for block in _blocks(body):
        hashed.update(block)
        found.append(hashed.hexdigest())
    if session:
        found.append(hashlib.blake2b(orjson.dumps([group, "session", session]), digest_size=8).hexdigest())
    return found[::-1]


def joined(found: Sequence[str]) -> str:
    """Marks as they travel, in one field."""
    return SEPARATOR.join(found)


def apart(text: str) -> list[str]:
    """The marks in such a field."""
    return [mark for mark in text.split(SEPARATOR) if mark]


def _blocks(body: Mapping[str, Any]) -> Iterator[bytes]:
    text = bytearray()
    for piece in _pieces(body):
        text += orjson.dumps(piece)
        if len(text) >= BLOCK_BYTES * MOST_BLOCKS:
            break
    for number in range(min(len(text) // BLOCK_BYTES, MOST_BLOCKS)):
        yield bytes(text[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])


def _pieces(body: Mapping[str, Any]) -> Iterator[object]:
    yield from (body[name] for name in LEAD if body.get(name))
    for turns in (body[name] for name in TURNS if body.get(name)):
        yield from turns if isinstance(turns, list) else [turns]
