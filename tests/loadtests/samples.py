"""Samples and rows for tests of what is made from them."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.plan import Step
from loadtests.sample import Outcome, Sample
from loadtests.slo import Good
from loadtests.summary import Row, rows


def sample(
    first_ms: float = 100.0, *, outcome: Outcome = "ok", at_s: float = 0.0, lag_ms: float = 0.5
) -> Sample:
    """Ten tokens, 20 ms apart."""
    last_ms = first_ms + 180.0
    return Sample(
        0,
        0,
        "chat",
        1000.0 + at_s,
        at_s,
        sent_ms=lag_ms,
        first_ms=first_ms if outcome == "ok" else None,
        last_ms=last_ms if outcome == "ok" else None,
        end_ms=last_ms + 1.0,
        gaps_ms=[20.0] * 9,
        tokens=10,
        status=200,
        outcome=outcome,
        trace_id="0" * 32,
    )


def row(samples: Sequence[Sample], *, part: str = "rate", rate: float = 1.0, users: int = 0) -> Row:
    """One step of these samples."""
    step = Step(0, part, f"{rate}/s", "chat", 0.0, 20.0, users, rate)
    return rows([step], list(samples), Good())[0]


def held(rate: float, good: int, of: int) -> Row:
    """A step of the open loop, with so many good answers of so many."""
    answered = [(n + 1) * good // of > n * good // of for n in range(of)]  # evenly spread
    return row(ended(answered), rate=rate)


def ended(answered: Sequence[bool]) -> list[Sample]:
    """Answered or refused, one after the other."""
    return [
        sample(outcome="ok" if well else "refused", at_s=n / len(answered) * 20)
        for n, well in enumerate(answered)
    ]
