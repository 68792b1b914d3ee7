"""A finding on the terminal, or as JSON; and the progress until there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from service.errors import shown
from service.probe.advice import advice, span
from service.probe.finding import Finding, Part
from service.probe.measure import Wish

WIDTH = 44
COLOURS: dict[Part, str] = {
    "queue": "yellow",
    "prefill": "cyan",
    "decode": "blue",
    "service": "magenta",
    "network": "white",
}


class Told:
    """Progress as a bar over warm-up and requests, with the pieces of text counted."""

    def __init__(self, progress: Progress, steps: int) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("", total=steps, pieces="")
        self._pieces = 0
        self._begun = False

    def step(self, what: str) -> None:
        """The step before it is over."""
        self._pieces = 0
        self._progress.update(self._task, description=what, advance=int(self._begun), pieces="")
        self._begun = True

    def piece(self) -> None:
        """One more piece of text."""
        self._pieces += 1
        self._progress.update(self._task, pieces=f"{self._pieces} pieces")


@contextmanager
def telling(wish: Wish) -> Iterator[Told]:
    """A progress bar on the standard error stream, gone at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(24),
        TextColumn("{task.fields[pieces]:>12}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    watched = console.is_terminal  # elsewhere even an empty bar leaves a line
    with Progress(*columns, console=console, transient=True, disable=not watched) as progress:
        yield Told(progress, wish.requests + 2)


def as_json(finding: Finding) -> str:
    """Every figure, for other programs. Times are milliseconds, shares run from 0 to 1."""
    return json.dumps(
        {**asdict(finding), "shares": finding.shares, "advice": advice(finding)}, indent=2, ensure_ascii=False
    )


def on_terminal(finding: Finding, console: Console) -> None:
    """The finding for people."""
    console.print(Padding(Group(*_lines(finding)), (1, 2)))


def _lines(finding: Finding) -> Iterator[RenderableType]:
    answers = "1 answer" if finding.answers == 1 else f"{finding.answers} answers"
    yield Text.assemble((shown(finding.model), "bold"), f" at {finding.url}, {answers}", "")
    yield _figures(finding)
    yield Text()
    yield Text(_sum(finding))
    yield _chart(finding)
    yield Text()
    yield Text.assemble(("Bound by ", "bold"), (finding.verdict, f"bold {COLOURS[finding.verdict]}"))
    yield Text(advice(finding))
    if finding.unknown:
        yield Text()
        yield Text("What this server does not tell:", style="dim")
        yield from (Text(f"- {line}", style="dim") for line in finding.unknown)
    yield from (Text(note, style="dim") for note in finding.notes)


def _figures(finding: Finding) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, spread in (("first token", finding.first_ms), ("time per token", finding.pace_ms)):
        between = f"{span(spread.least)} to {span(spread.most)}"
        table.add_row(name, span(spread.median), between)
    table.add_row("between pieces", span(finding.gap_p50_ms), f"p99 {span(finding.gap_p99_ms)}")
    if finding.prompt_tokens is not None:
        cached = "" if finding.cached_tokens is None else f"{finding.cached_tokens:,} cached"
        table.add_row("prompt", f"{finding.prompt_tokens:,} tokens", cached)
    table.add_row("answer", f"{finding.output_tokens:,} tokens", "")
    return table


def _sum(finding: Finding) -> str:
    steps = max(0, finding.output_tokens - 1)
    first, pace = finding.first_ms.median, finding.pace_ms.median
    return (
        f"total {span(finding.total_ms.median)} ≈ {span(first)} to the first token "
        f"+ {steps:,} × {span(pace)} = {span(first + steps * pace)}"
    )


def _chart(finding: Finding) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(min_width=WIDTH)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for part, share in finding.shares.items():
        filled = round(share * WIDTH)
        bar = Text.assemble(("█" * filled, COLOURS[part]), ("·" * (WIDTH - filled), "dim"))
        table.add_row(part, bar, span(finding.parts[part]), f"{share:.0%}")
    return table
