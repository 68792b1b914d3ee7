"""What a run came to, in figures and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.knee import Knee
from loadtests.resource import Finding
from loadtests.sample import OUTCOMES, Sample
from loadtests.summary import PHASES, Row

SLOWEST = 10

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything a report shows, but for the pictures."""

    rows: Sequence[Row]
    knee: Knee | None
    finding: Finding | None
    faults: Sequence[str]
    about: dict[str, Any]
    answers: Sequence[str] = ()

    @property
    def sentences(self) -> Iterator[str]:
        """The most important of it."""
        if self.knee is not None:
            yield knee_sentence(self.knee)
        if self.finding is not None:
            yield f"What limits it there: {self.finding.resource}. {self.finding.sentence}"
        yield from self.answers

    @property
    def table(self) -> list[dict[str, Cell]]:
        """One line for each step."""
        return [cells(row) for row in self.rows]

    @property
    def slowest(self) -> list[tuple[str, Sample]]:
        """The answers that began last after they were meant to, with the step they belong to."""
        found = [(row.name, s) for row in self.rows for s in row.samples if s.first_ms and s.outcome == "ok"]
        return sorted(found, key=lambda pair: -(pair[1].first_ms or 0.0))[:SLOWEST]


def knee_sentence(knee: Knee) -> str:
    """Where the knee is, and how sure that is."""
    if knee.censored:
        return f"No knee up to {knee.rate:.3g} requests/s: every rate that was tried was answered well."
    sure = f"95 % confidence: {knee.low:.3g} to {knee.high:.3g}"
    return f"Up to {knee.rate:.3g} requests/s are answered well ({sure})."


def cells(row: Row) -> dict[str, Cell]:
    """One step as plain figures."""
    step = row.step
    return {
        "part": step.part,
        "step": step.name,
        "workload": step.workload,
        "users": step.users or None,
        "rate_per_s": _rounded(step.rate_per_s) if step.open else None,
        "requests": len(row.samples),
        **{name: _rounded(row.value(name)) for name in Row.MEASURES},
        "offered_per_s": _rounded(row.offered_per_s),
        "goodput_per_s": _rounded(row.goodput_per_s),
        "output_tokens_per_s": _rounded(row.tokens_per_s),
        "cached_share": _rounded(row.cached_share),
        "generator_late_ms": row.late_ms,
        **{f"mean_{name}": _rounded(row.phase_means().get(name)) for name in PHASES},
        **{f"outcome_{name}": row.outcomes[name] for name in OUTCOMES},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
