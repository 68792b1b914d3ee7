"""What is asked of every contestant: so many streams at once, or prompts of so many words one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass

STREAM_PROMPT_WORDS = 16
PROMPT_TOKENS_OUT = 8
LEAST_STREAM_REQUESTS = 32  # few streams are asked several times over, so that there is something to measure
LEAD_IN_TOKENS = 32

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

    @property
    def one_by_one(self) -> bool:
        """Whether the cost of a whole request is asked for, and not that of a token."""
        return self.name.endswith("words")


def streams(count: int, tokens: int, *, repeat: bool) -> Shape:
    """`count` streams of `tokens` tokens; with `repeat`, few streams are asked more than once."""
    times = max(1, LEAST_STREAM_REQUESTS // count) if repeat else 1
    return Shape(f"{count} streams", count, count * times, STREAM_PROMPT_WORDS, tokens)


def prompts(words: int) -> Shape:
    """Cold prompts of `words` words with a short answer; the longer, the fewer."""
    return Shape(f"{words} words", 1, max(12, min(120, 48_000 // words)), words, PROMPT_TOKENS_OUT)


def lead_in(shape: Shape) -> Shape:
    """The same with one short answer for each stream: what has not run for a while is slow at first."""
    tokens = min(shape.tokens, LEAD_IN_TOKENS)
    return Shape(shape.name, shape.streams, shape.streams, shape.words, tokens)


def prompt(shape: Shape, turn: int, index: int) -> str:
    """The words of one request: the same for every contestant, and never seen before by any prefix cache."""
    # A prompt that begins like another one is partly cached, so all of it is drawn anew.
    chosen = random.Random(f"{shape.name}/{turn}/{index}").choices(WORDS.split(), k=shape.words)
    return " ".join(chosen)
