"""Which messages may give way when a conversation is too long, and how few of them are enough.

    system  developer │ assistant │ user assistant │ user assistant(call) tool tool assistant │ user …
    └─ always kept ─┘   unit 0      unit 1           unit 2                                     └─ always kept

A unit begins with a user turn and ends before the next one, so whatever is left out, what remains
begins with a user turn, no call loses its results, and no two turns meet that were apart before
save the system's and that user's. A user turn between a call and one of its results begins no unit.
System messages in the middle of history age with the unit they stand in: kept alone, they would
come to stand beside the first one, which many templates refuse. A result without a call is not
ours to judge and ages likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

Message = Mapping[str, Any]
INSTRUCTIONS = ("system", "developer")


def units(messages: Sequence[Message]) -> list[range]:
    """The message indexes that may be left out, oldest unit first, without gaps.

    Everything before the first unit and after the last one stays.
    """
    first = sum(1 for _ in takewhile(lambda message: message["role"] in INSTRUCTIONS, messages))
    starts = _starts(messages)
    if starts and starts[0] > first:  # what an assistant said before anybody asked
        starts.insert(0, first)
    return [range(start, stop) for start, stop in pairwise(starts)]


def choose_cut(unit_tokens: Sequence[float], fixed_tokens: float, room: float) -> int:
    """How many of the oldest units must go so that the rest fits `room`; all of them if none is enough."""
    total = fixed_tokens + sum(unit_tokens)
    for dropped, tokens in enumerate(unit_tokens):
        if total <= room:
            return dropped
        total -= tokens
    return len(unit_tokens)


def without(messages: Sequence[Message], dropped: Sequence[range]) -> list[Message]:
    """The messages that remain when these units, the oldest, are left out."""
    if not dropped:
        return list(messages)
    return [*messages[: dropped[0].start], *messages[dropped[-1].stop :]]


def kept(messages: Sequence[Message], dropped: int) -> list[int]:
    """The numbers of the messages that remain when so many of the oldest that may go are left out."""
    first = units(messages)[0].start if dropped else 0
    return [*range(first), *range(first + dropped, len(messages))]


def _starts(messages: Sequence[Message]) -> list[int]:
    """User turns before which nothing waits for a result that comes after."""
    last_result = _last_results(messages)
    starts, pending = [], -1
    for index, message in enumerate(messages):
        if message["role"] == "user" and pending < index:
            starts.append(index)
        pending = max(pending, last_result.get(index, -1))
    return starts


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """For each turn that calls tools, where its last result is. An id used again means the later call."""
    caller: dict[str, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        caller.update((call["id"], index) for call in message.get("tool_calls") or ())
        if message["role"] == "tool" and message.get("tool_call_id") in caller:
            last[caller[message["tool_call_id"]]] = index
    return last
