"""Bytes for a client who does not keep up: bounded, in pieces, and never behind the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.web.writer import MOST_UNSENT_BYTES, PIECE_BYTES, Writer


class Slow:
    """A client whose connection takes one message, and the next when it reads."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.writer = Writer(self.send, lambda: None, lambda: None)

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        await self.reads.wait()


async def test_what_waits_is_sent_in_pieces_of_whole_events_and_ends_with_the_last() -> None:
    slow = Slow()
    events = [b"data: " + b"a" * size + b"\n\n" for size in (1000, PIECE_BYTES, 10) * 100]
    text = b"".join(events)
    slow.writer.write(b"first")
    slow.writer.write(text)
    slow.writer.write_last(b"last", lambda: b" and the end")
    slow.reads.set()
    await slow.writer.over
    bodies = [message["body"] for message in slow.messages]
    assert b"".join(bodies) == b"first" + text + b"last and the end"
    assert max(map(len, bodies)) < PIECE_BYTES + 20 and len(bodies) > 100
    assert all(body.endswith(b"\n\n") for body in bodies[1:-1]), "no event is torn apart"
    assert [message["more_body"] for message in slow.messages] == [True] * (len(bodies) - 1) + [False]


async def test_who_lets_too_much_wait_is_taken_to_have_left() -> None:
    slow = Slow()
    for _ in range(2 + MOST_UNSENT_BYTES // PIECE_BYTES):
        slow.writer.write(b"a" * PIECE_BYTES)
    assert slow.writer.over.done()
    with pytest.raises(ConnectionError):
        await slow.writer.over
    slow.writer.abandon()


async def test_nothing_is_written_behind_the_end() -> None:
    slow = Slow()
    slow.reads.set()
    slow.writer.write_last(b"a", lambda: b"b")
    slow.writer.write(b"c")
    await slow.writer.over
    assert [message["body"] for message in slow.messages] == [b"ab"]
