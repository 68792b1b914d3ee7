"""From timed answers to the two terms, their shares and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from service.probe.stream import Answer
from service.probe.trouble import ProbeError

Part = Literal["queue", "prefill", "decode", "service", "network"]

UNKNOWN_OUTSIDE = (
    "how much of the time to the first token is queue, prefill, the server's own work and the network",
    "how the server's own clock divides the time (a Twophase tells it in `phases`)",
)
UNCOUNTED = "how many tokens were written: it sends no usage, so pieces of text are counted"
UNCACHED = "how much of the prompt came from a prefix cache"


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over all answers."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median_low(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found. `parts` are milliseconds of a typical answer: its total is their sum."""

    url: str
    model: str
    answers: int
    has_phases: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    first_ms: Spread
    pace_ms: Spread
    total_ms: Spread
    gap_p50_ms: float
    gap_p99_ms: float
    parts: Mapping[Part, float]
    verdict: Part
    unknown: Sequence[str]
    notes: Sequence[str]

    @property
    def shares(self) -> dict[Part, float]:
        """Each part of the total, from 0 to 1."""
        whole = sum(self.parts.values())
        return {part: ms / whole if whole else 0.0 for part, ms in self.parts.items()}


def find(url: str, model: str, answers: Sequence[Answer], notes: Sequence[str]) -> Finding:
    """The finding of one or more answers.

    Raises:
        ProbeError: nothing can be told from them.
    """
    typical = sorted(answers, key=lambda answer: answer.total_ms)[(len(answers) - 1) // 2]
    if typical.phases is None and typical.tokens > 1 and len(typical.pieces_s) == 1:
        raise ProbeError(
            f"{typical.tokens} tokens came in one piece, so that reading the prompt and writing the answer "
            "cannot be told apart: something between here and the server may be holding the stream back."
        )
    parts = divided(typical)
    usage = typical.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    gaps = sorted(gap for answer in answers for gap in answer.gaps_ms) or [0.0]
    unknown = [] if typical.phases else list(UNKNOWN_OUTSIDE)
    unknown += [] if usage else [UNCOUNTED]
    unknown += [] if "cached_tokens" in details else [UNCACHED]
    return Finding(
        url=url,
        model=model,
        answers=len(answers),
        has_phases=typical.phases is not None,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=typical.tokens,
        first_ms=Spread.of([answer.first_ms for answer in answers]),
        pace_ms=Spread.of([answer.pace_ms for answer in answers]),
        total_ms=Spread.of([answer.total_ms for answer in answers]),
        gap_p50_ms=gaps[len(gaps) // 2],
        gap_p99_ms=gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)],
        parts=parts,
        verdict=max(parts, key=lambda part: parts[part]),
        unknown=unknown,
        notes=notes,
    )


def divided(answer: Answer) -> dict[Part, float]:
    """An answer's time in parts that add up to it.

    With the server's phases they are its own, and what it did not see is the network. Without them
    only two can be told apart from outside: up to the first text, which is prefill and whatever came
    before it, and after.
    """
    total = answer.total_ms
    if answer.phases is None:
        return {"prefill": answer.first_ms, "decode": total - answer.first_ms}
    told = {name: float(answer.phases.get(f"{name}_ms") or 0.0) for name in TOLD}
    parts: dict[Part, float] = {
        "queue": told["admission"] + told["queue"],
        "prefill": told["prefill"],
        "decode": told["decode"],
    }
    parts["service"] = max(0.0, told["total"] - sum(parts.values()))
    parts["network"] = max(0.0, total - sum(parts.values()))
    return parts


TOLD = ("admission", "queue", "prefill", "decode", "total")
