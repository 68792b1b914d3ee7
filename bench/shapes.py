"""What is asked of every contestant: so many streams at once, or prompts of so many words one by one.

A prompt is new to every cache, or a turn that goes on from a conversation of so many words, known by then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

STREAM_PROMPT_WORDS = 16
PROMPT_TOKENS_OUT = 8
LEAST_STREAM_REQUESTS = 32  # few streams are asked several times over, so that there is something to measure
LEAD_IN_TOKENS = 32
FURTHER_TURNS = 12
FURTHER_WORDS = 24  # of the reply before, and of the new question

WORDS = (
    "amber anchor autumn basket bridge candle canyon cedar cellar circle copper cotton "
    "desert dinner doctor engine evening falcon farmer feather forest garden granite harbor "
    "hunter island jacket journey kettle ladder lantern letter marble meadow mirror morning "
    "mountain needle orchard oven paper pepper pillow planet pocket quarry rabbit ribbon "
    "river saddle shadow silver spider spring station stone summer table timber tunnel "
    "valley village violin walnut water weather window winter wonder yellow"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One load: `requests` in all, `streams` of them at any time, each answered with `tokens` tokens."""

    name: str
    streams: int
    requests: int
    words: int
    tokens: int
    known: bool = False  # the words are the beginning of a conversation that goes on, turn by turn

    @property
    def one_by_one(self) -> bool:
        """Whether the cost of a whole request is asked for, and not that of a token."""
        return self.name.endswith("words")


def streams(count: int, tokens: int, *, repeat: bool) -> Shape:
    """`count` streams of `tokens` tokens; with `repeat`, few streams are asked more than once."""
    times = max(1, LEAST_STREAM_REQUESTS // count) if repeat else 1
    return Shape(f"{count} streams", count, count * times, STREAM_PROMPT_WORDS, tokens)


def prompts(words: int, requests: int | None = None) -> Shape:
    """Cold prompts of `words` words with a short answer; the longer, the fewer, unless that is given."""
    usual = max(12, min(120, 48_000 // words))
    return Shape(f"{words} words", 1, requests or usual, words, PROMPT_TOKENS_OUT)


def further_turns(words: int) -> Shape:
    """Turns of a conversation that began with `words` words."""
    return Shape(f"a turn after {words} words", 1, FURTHER_TURNS, words, PROMPT_TOKENS_OUT, known=True)


def lead_in(shape: Shape) -> Shape:
    """The same with one short answer for each stream: what has not run for a while is slow at first."""
    return replace(shape, requests=shape.streams, tokens=min(shape.tokens, LEAD_IN_TOKENS))


def messages(shape: Shape, turn: int, index: int) -> list[dict[str, str]]:
    """The messages of one request, the same for every contestant.

    Where the words are known, the lead-in of a turn (a turn below 0) has sent them, and each request has one
    reply and one question more than the one before.
    """
    if not shape.known:
        return [{"role": "user", "content": prompt(shape, turn, index)}]
    further = range(0 if turn < 0 else index + 1)
    return [
        {"role": "user", "content": _drawn(f"{shape.name}/{abs(turn)}", shape.words)},
        *(
            {"role": role, "content": _drawn(f"{shape.name}/{abs(turn)}/{at}/{role}", FURTHER_WORDS)}
            for at in further
            for role in ("assistant", "user")
        ),
    ]


def prompt(shape: Shape, turn: int, index: int) -> str:
    """The words of one request that no prefix cache has seen before."""
    # A prompt that begins like another one is partly cached, so all of it is drawn anew.
    return _drawn(f"{shape.name}/{turn}/{index}", shape.words)


def _drawn(seed: str, words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS.split(), k=words))
