"""Shows how it goes: a bar where there is a terminal, and a line for each turn everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.sample import Sample
from bench.shapes import Shape


class Shown:
    """The watcher of a race, on standard error."""

    def __init__(self, labels: Mapping[str, str], turns: int) -> None:
        self._labels = labels
        self._last = ""
        self._console = Console(stderr=True, highlight=False, markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
        self._task = self._progress.add_task("", total=turns)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begins(self, what: str) -> None:
        self._progress.update(self._task, description=what)
        if not self._console.is_terminal and what != self._last:
            self._console.print(what)
        self._last = what

    def has(self, sample: Sample) -> None:
        self._progress.advance(self._task)
        self._console.print(self._line(sample), soft_wrap=True)

    def repeats(self, shape: Shape, others: float) -> None:
        self._progress.update(self._task, completed=self._progress.tasks[0].completed - len(self._labels))
        self._console.print(f"{shape.name}: others took {others:.0%} of the machine; once more")

    def waits(self) -> None:
        self.begins("waiting for a calmer machine")

    def _line(self, sample: Sample) -> str:
        cost = (
            f"{sample.cpu_ms_per_request:.2f} ms CPU/request"
            if sample.shape.endswith("words")
            else f"{sample.tokens_per_s:,.0f} tokens/s, {sample.cpu_us_per_token:.1f} µs CPU/token"
        )
        return (
            f"{sample.shape:>11}  {self._labels[sample.contestant]:<14} {cost}, "
            f"TTFT {sample.ttft_p50_ms:.0f}/{sample.ttft_p99_ms:.0f} ms  "
            f"[others {sample.others:.0%}, client late {sample.client_late:.0%}, load {sample.load:.1f}]"
        )
