"""Reads one answer off the wire, from the raw bytes of a response to what was in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

END_OF_BODY = b"\r\n0\r\n\r\n"  # the last chunk of a chunked body; no JSON text contains a bare line break
FIRST_TEXT = re.compile(rb'"content": ?"[^"]')  # a role alone, with an empty content, is no token
EVENT = b"data: "
DONE = b"[DONE]"


class BadStream(Exception):
    """The answer is not the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What a complete answer held."""

    tokens: int
    chunks: int
    text: str


def ended(parts: list[bytes]) -> bool:
    """Whether the body is complete, wherever the network has cut it; looks at the last bytes only."""
    last = parts[-1]
    if len(last) < len(END_OF_BODY):
        last = b"".join(parts[-len(END_OF_BODY) :])
    return last.endswith(END_OF_BODY)


def check(raw: bytes, tokens: int) -> Stream:
    """The answer in `raw`, which must be whole and have exactly `tokens` tokens.

    Raises:
        BadStream: with what is wrong.
    """
    head, _, body = raw.partition(b"\r\n\r\n")
    _check_head(head)
    events = list(_events(_unchunked(body)))
    if not events or events[-1] != DONE:
        raise BadStream("the stream does not end with [DONE]")
    stream = _read([_json(event) for event in events[:-1]])
    if stream.tokens != tokens:
        raise BadStream(f"the answer has {stream.tokens} tokens where {tokens} were asked for")
    return stream


def _check_head(head: bytes) -> None:
    status, *fields = head.decode("latin-1").lower().split("\r\n")
    if status.split(" ")[1:2] != ["200"]:
        raise BadStream(f"the status line is {status!r}")
    if not any(field.startswith("content-type: text/event-stream") for field in fields):
        raise BadStream("the response is no event stream")
    if "transfer-encoding: chunked" not in fields:
        raise BadStream("the response is not chunked, so that its end cannot be told")


def _unchunked(body: bytes) -> bytes:
    parts = []
    at = 0
    while True:
        line_end = body.find(b"\r\n", at)
        size = _chunk_size(body[at:line_end]) if line_end >= 0 else -1
        start, at = line_end + 2, line_end + 2 + size
        if size < 0 or body[at : at + 2] != b"\r\n":
            raise BadStream("the body is cut off or its chunks are damaged")
        if size == 0:
            break
        parts.append(body[start:at])
        at += 2
    if at + 2 != len(body):
        raise BadStream("something follows the end of the body")
    return b"".join(parts)


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        return -1


def _events(body: bytes) -> Iterator[bytes]:
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        if block.startswith(EVENT):
            yield block.removeprefix(EVENT)
        elif block and not block.startswith(b":"):
            raise BadStream(f"a block of the stream is no event: {block[:80]!r}")


def _json(event: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(event)
    except ValueError:
        raise BadStream(f"an event is not JSON: {event[:80]!r}") from None
    if "error" in parsed or not isinstance(parsed.get("choices"), list):
        raise BadStream(f"the stream holds an error: {event[:300]!r}")
    return parsed  # type: ignore[no-any-return]


def _read(chunks: list[dict[str, Any]]) -> Stream:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    finishes = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if finishes != ["length"]:
        raise BadStream(f"the answer must finish once, by its length; it finished {finishes}")
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    if len(usages) != 1:
        raise BadStream(f"one usage report was asked for, {len(usages)} came")
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return Stream(usages[0]["completion_tokens"], len(choices), text)
