"""What is asked: seeded prompts of known shape, made here, so that nothing has to be downloaded."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["single", "prefix", "talk", "mixed"]
Message = dict[str, str]
Turn = tuple[int, int]  # the number of a conversation, and of a turn in it

VOCABULARY = (
    "anchor autumn basket bridge candle canyon cedar circle copper cotton desert dinner engine evening "
    "falcon farmer feather forest garden granite harbor hunter island jacket journey kettle ladder lantern "
    "letter marble meadow mirror morning mountain needle orchard paper pepper pillow planet pocket rabbit "
    "ribbon river saddle shadow silver spider spring station stone summer table timber tunnel valley "
    "village violin walnut water weather window winter wonder yellow"
)
WORDS = VOCABULARY.split()
LONGEST = 4.0  # how far above its middle a drawn length may lie
LEAVES_AFTER = 8  # a client that leaves does so before the first chunk, or after up to so many


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, ready to be sent."""

    messages: list[Message]
    max_tokens: int
    kind: str
    words: int
    streamed: bool = True
    leave_after: int | None = None  # chunks after which the client goes away
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape of requests. Which one `ask` gives depends on the seed and its number alone."""

    name: str = "chat"
    kind: Kind = "single"
    words: int = 40  # of a question
    tokens: int = 32  # asked for
    spread: float = 0.0  # sigma of the lognormal around both; 0 is no spread
    warm: bool = False  # the same prompts again and again, in place of ones never seen before
    prompts: int = 8  # how many different ones, when warm
    groups: int = 4  # shared prefixes
    prefix_words: int = 600  # of each of them
    turns: int = 5  # of a conversation
    talks: int = 8  # conversations at a time
    stream: bool = True
    leave: float = 0.0  # share of clients that leave early

    def ask(self, number: int, seed: int, run: str, replies: Mapping[Turn, str]) -> Ask:
        """Request `number`. `run` makes cold prompts new to a server that saw an earlier run; `replies` are
        the answers so far, by turn: one that is missing is made up.
        """
        if self.kind == "mixed":
            return self._mixed(number, seed, run, replies)
        sizes = random.Random(f"{seed}/{self.name}/sizes/{number}")
        words, tokens = self._drawn(self.words, sizes), self._drawn(self.tokens, sizes)
        leaves = sizes.random() < self.leave
        turn = self._turn(number) if self.kind == "talk" else None
        messages = self._messages(number, words, f"{seed}/{self.name}", run, turn, replies)
        return Ask(
            messages,
            tokens,
            self.name,
            sum(len(message["content"].split()) for message in messages),
            self.stream,
            sizes.randint(0, LEAVES_AFTER) if leaves else None,
            turn,
        )

    def _messages(
        self, number: int, words: int, seed: str, run: str, turn: Turn | None, replies: Mapping[Turn, str]
    ) -> list[Message]:
        if turn is not None:
            return self._talk(turn, words, f"{seed}/{run}", replies)
        if self.warm:
            return [_said("user", _text(f"{seed}/warm/{number % self.prompts}", words))]
        question = _said("user", _text(f"{seed}/{run}/{number}", words))
        if self.kind == "prefix":
            return [
                _said("system", _text(f"{seed}/group/{number % self.groups}", self.prefix_words)),
                question,
            ]
        return [question]

    def _turn(self, number: int) -> Turn:
        """`talks` conversations go on side by side; when they have had all turns, new ones begin."""
        round_, place = divmod(number, self.talks * self.turns)
        turn, talk = divmod(place, self.talks)
        return round_ * self.talks + talk, turn

    def _talk(self, turn: Turn, words: int, seed: str, replies: Mapping[Turn, str]) -> list[Message]:
        talk, newest = turn
        messages = []
        for past in range(newest):
            messages.append(_said("user", _text(f"{seed}/{talk}/{past}", self.words)))
            made_up = _text(f"{seed}/{talk}/{past}/reply", self.tokens)
            messages.append(_said("assistant", replies.get((talk, past), made_up)))
        return [*messages, _said("user", _text(f"{seed}/{talk}/{newest}", words))]

    def _mixed(self, number: int, seed: int, run: str, replies: Mapping[Turn, str]) -> Ask:
        chosen = random.Random(f"{seed}/mixed/{number}").choices(list(MIX), list(MIX.values()))[0]
        part = replace(PRESETS[chosen], stream=self.stream, leave=self.leave)
        return part.ask(number, seed, run, replies)

    def _drawn(self, middle: int, source: random.Random) -> int:
        """Lognormal with the median `middle`; always drawn, so that one knob does not move the others."""
        factor = math.exp(source.gauss(0.0, 1.0) * self.spread)
        return max(1, round(middle * min(factor, LONGEST)))


PRESETS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("chat"),
        Workload("long-prompt", words=1500, tokens=8),
        Workload("long-answer", words=20, tokens=256),
        Workload("shared-prefix", kind="prefix", words=20, tokens=16),
        Workload("multi-turn", kind="talk"),
        Workload("lognormal", words=120, tokens=48, spread=0.8),
        Workload("mixed", kind="mixed"),
    )
}
MIX = {"chat": 6, "shared-prefix": 2, "multi-turn": 2, "long-answer": 1, "long-prompt": 1}


def parse(text: str) -> Workload:
    """A preset, with fields replaced: `chat`, or `chat,words=100,tokens=64,warm=1`.

    Raises:
        ValueError: with what can be written instead.
    """
    name, *changes = text.split(",")
    if name not in PRESETS:
        raise ValueError(f"there is no workload {name!r}; there are {', '.join(PRESETS)}")
    return replace(PRESETS[name], **dict(map(_change, changes)))  # type: ignore[arg-type]


def _change(text: str) -> tuple[str, bool | int | float]:
    name, _, value = text.partition("=")
    known: dict[str, type] = {
        f.name: type(f.default) for f in dataclasses.fields(Workload) if f.name not in ("name", "kind")
    }
    if name not in known:
        raise ValueError(f"a workload has no {name!r}; it has {', '.join(known)}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{name} needs a number, and {value!r} is none") from None
    if number < 0 or (number == 0 and known[name] is int):
        raise ValueError(f"{name} cannot be {value}")
    return name, (bool if known[name] is bool else int if known[name] is int else float)(number)


def _text(seed: str, words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}
