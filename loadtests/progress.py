"""Tells, while a run goes on, what has been answered so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from loadtests.figures import quantile
from loadtests.plan import Plan
from loadtests.sample import Tail

EVERY_S = 5.0


class Progress:
    """Reads the samples as they are written; a line every few seconds, and one for each finished step."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._steps = {step.number: step for step in plan.steps}
        self._say = say
        self._tail = Tail(Path(plan.folder))
        self._told = time.monotonic()
        self._newest: int | None = None
        self._shown = 0

    def look(self) -> None:
        """Say something when it is time, or when a step has begun to answer."""
        newest = self._look()
        if self._newest is not None and newest != self._newest:
            self._tell("")
        self._newest = newest
        if time.monotonic() - self._told >= EVERY_S and len(self._tail.samples) != self._shown:
            self._tell("…")

    def last(self) -> None:
        """The figures of the step that was last."""
        self._newest = self._look()
        self._tell("")

    def _look(self) -> int | None:
        self._tail.look()
        return max((s.step for s in self._tail.samples if s.step in self._steps), default=None)

    def _tell(self, more: str) -> None:
        self._told, self._shown = time.monotonic(), len(self._tail.samples)
        if self._newest is None:
            return
        step = self._steps[self._newest]
        mine = [sample for sample in self._tail.samples if sample.step == step.number]
        first = [sample.first_ms for sample in mine if sample.first_ms is not None]
        p50, p95 = quantile(first, 0.5), quantile(first, 0.95)
        shown = f"first token p50 {p50:.0f} ms, p95 {p95:.0f} ms" if p50 and p95 else "no token yet"
        ended = Counter(sample.outcome for sample in mine)
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(ended.items()))
        self._say(f"{step.part:>12} {step.name:<18} {outcomes}; {shown} {more}")
