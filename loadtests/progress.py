"""Tells, while a run goes on, what has been answered so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from loadtests.figures import quantile
from loadtests.plan import Plan
from loadtests.sample import Sample

EVERY_S = 5.0


class Progress:
    """Reads the samples as they are written; one line for every few seconds, one for each finished step."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._read: dict[Path, int] = {p: p.stat().st_size for p in Path(plan.folder).glob("samples-*.jsonl")}
        self._samples: dict[int, list[Sample]] = {step.number: [] for step in plan.steps}
        self._told = time.monotonic()
        self._newest = -1

    def look(self) -> None:
        """Say something when it is time, or when a step has begun to answer."""
        for sample in self._new():
            self._samples[sample.step].append(sample)
            if sample.step > self._newest:
                self.last()
                self._newest = sample.step
        if time.monotonic() - self._told >= EVERY_S and self._newest >= 0:
            self._tell("…")

    def last(self) -> None:
        """The figures of the step that was last."""
        for sample in self._new():
            self._samples[sample.step].append(sample)
            self._newest = max(self._newest, sample.step)
        if self._newest >= 0:
            self._tell("")

    def _tell(self, more: str) -> None:
        self._told = time.monotonic()
        step = next(step for step in self._plan.steps if step.number == self._newest)
        mine = self._samples[step.number]
        ended = Counter(sample.outcome for sample in mine)
        first = [s.first_ms for s in mine if s.first_ms is not None]
        p50, p95 = quantile(first, 0.5), quantile(first, 0.95)
        shown = f"first token p50 {p50:.0f} ms, p95 {p95:.0f} ms" if p50 and p95 else "no token yet"
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(ended.items()))
        self._say(f"{step.part:>12} {step.name:<18} {outcomes}; {shown} {more}")

    def _new(self) -> Iterator[Sample]:
        for path in sorted(Path(self._plan.folder).glob("samples-*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            yield from map(Sample.from_json, whole.splitlines())
