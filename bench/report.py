"""The results as Markdown: a table for each load, the ratios, and the targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.sample import Measure, Results, most_disturbed
from bench.shapes import Shape
from bench.stats import Spread, ratios, spread
from bench.targets import BEST, US, Target


@dataclass(frozen=True, slots=True)
class Column:
    """A measure as a reader sees it."""

    title: str
    measure: Measure
    digits: int


STREAM_COLUMNS = (
    Column("tokens/s", "tokens_per_s", 0),
    Column("front-end CPU per token, µs", "cpu_us_per_token", 1),
    Column("TTFT p50, ms", "ttft_p50_ms", 0),
    Column("TTFT p99, ms", "ttft_p99_ms", 0),
    Column("front-end memory, MB", "peak_mb", 0),
)
REQUEST_COLUMN = Column("CPU per request, ms", "cpu_ms_per_request", 2)

Row = list[str]


def tables(results: Results, shapes: Sequence[Shape], labels: Mapping[str, str]) -> str:
    """Everything that was measured: medians over the turns, and lowest to highest."""
    parts = [_stream_table(results, shape, labels) for shape in shapes if not shape.one_by_one]
    one_by_one = [shape for shape in shapes if shape.one_by_one]
    if one_by_one:
        parts.append(_request_table(results, one_by_one, labels))
    return "\n".join(parts)


def verdicts(results: Results, targets: Iterable[Target], labels: Mapping[str, str]) -> str:
    """Each target that this run can judge; empty when there is none."""
    rows = []
    for target in targets:
        measured = target.measured(results)
        if measured is not None:
            met = "yes" if target.met(measured) else "**no**"
            rows.append([target.title, _wanted(target, labels), _compared(target, measured), met])
    return table(["target", "wanted", "measured", "met"], rows) if rows else ""


def disturbance(results: Results) -> str:
    """One sentence on how calm the machine was."""
    loads = spread([sample.load for sample in results.samples])
    worst = most_disturbed(results.samples) * 100
    repeated = len({sample.turn for sample in results.disturbed})
    load = f"load average {loads.median:.1f} ({loads.low:.1f} to {loads.high:.1f})"
    late = max(sample.client_late for sample in results.samples) * 100
    cut = "" if results.complete else " The time was up before the last round."
    return (
        f"Other programs took at most {worst:.0f} % of the machine during a turn that counts; "
        f"{repeated} disturbed turns were repeated; {load}; "
        f"the client itself waited for a CPU at most {late:.0f} % of a turn.{cut}"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers stand to the right."""
    rule = ["---"] + ["--:"] * (len(head) - 1)
    lines = [head, rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Spread, digits: int) -> str:
    """Median, and in brackets the lowest and the highest."""
    return f"{value.median:,.{digits}f} ({value.low:,.{digits}f}–{value.high:,.{digits}f})"


def _stream_table(results: Results, shape: Shape, labels: Mapping[str, str]) -> str:
    def cells(name: str) -> Row:
        return [
            shown(spread(results.values(name, shape.name, column.measure)), column.digits)
            for column in STREAM_COLUMNS
        ]

    def compared(peer: str) -> Row:
        return [_ratio(results, shape.name, column.measure, peer) for column in STREAM_COLUMNS]

    title = f"{shape.name} × {shape.tokens} tokens"
    rows = [[labels[name], *cells(name)] for name in labels if name in results.contestants]
    rows += [[f"{labels[US]} ÷ {labels[peer]}", *compared(peer)] for peer in _peers(results, labels)]
    return table([title, *(column.title for column in STREAM_COLUMNS)], rows)


def _request_table(results: Results, shapes: Sequence[Shape], labels: Mapping[str, str]) -> str:
    measure, digits = REQUEST_COLUMN.measure, REQUEST_COLUMN.digits
    rows = [
        [labels[name], *(shown(spread(results.values(name, s.name, measure)), digits) for s in shapes)]
        for name in labels
        if name in results.contestants
    ]
    rows += [
        [f"{labels[US]} ÷ {labels[peer]}", *(_ratio(results, shape.name, measure, peer) for shape in shapes)]
        for peer in _peers(results, labels)
    ]
    return table([f"{REQUEST_COLUMN.title}; {shapes[0].tokens} tokens out", *(s.name for s in shapes)], rows)


def _peers(results: Results, labels: Mapping[str, str]) -> list[str]:
    if US not in results.contestants:
        return []
    return [name for name in labels if name in results.contestants and name != US]


def _ratio(results: Results, shape: str, measure: Measure, peer: str) -> str:
    return shown(ratios(results.values(US, shape, measure), results.values(peer, shape, measure)), 2)


def _wanted(target: Target, labels: Mapping[str, str]) -> str:
    peer = "the best" if target.peer == BEST else labels[target.peer]
    if target.peer_shape:
        peer = f"{'its own' if target.peer == US else peer} at {target.peer_shape}"
    if target.difference:
        return f"≤ {peer} + {target.limit:g} {_unit(target)}"
    return f"{'≥' if target.at_least else '≤'} {target.limit:g} × {peer}"


def _compared(target: Target, measured: Spread) -> str:
    if target.difference:
        unit = _unit(target)
        return f"+ {shown(measured, 2 if unit == 'ms' else 1)} {unit}"
    return f"{shown(measured, 2)} ×"


def _unit(target: Target) -> str:
    return "ms" if target.measure.endswith(("_ms", "ms_per_request")) else "µs"
