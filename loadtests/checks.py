"""What a scenario was run to find out, answered in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadtests.figures import quantile
from loadtests.scenarios import AFTER_SIGNAL
from loadtests.scrape import Scrape, Window
from loadtests.summary import Row

RUNNING = "vllm:num_requests_running"
LOOK_S = 1.5  # scrapes come once a second


def answers(rows: Sequence[Row], scrapes: Sequence[Scrape]) -> Iterator[str]:
    """One sentence or two for each part that asks something."""
    yield from _streaming([row for row in rows if row.step.part == "streaming"])
    yield from _burst([row for row in rows if row.step.part == "burst"])
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        match row.step.part:
            case "overload" if row.step.name != "after":
                yield from _overload(row)
            case "disconnects" if row.outcomes["left"]:
                yield _left(row, following, scrapes)
            case "drain" if row.step.name == AFTER_SIGNAL:
                yield _drained(row)


def _streaming(rows: Sequence[Row]) -> Iterator[str]:
    if len(rows) != 2:
        return
    streamed, whole = rows
    first, last = streamed.value("ttft_p50_ms"), streamed.value("total_p50_ms")
    if first and last and (total := whole.value("total_p50_ms")):
        yield (
            f"Streamed, the first content comes after {first:.0f} ms and the last after {last:.0f} ms (p50); "
            f"whole, all of it after {total:.0f} ms."
        )


def _overload(row: Row) -> Iterator[str]:
    refused = [sample for sample in row.samples if sample.outcome == "refused"]
    p95 = row.value("ttft_p95_ms")
    if p95 is not None:
        yield (
            f"Under {row.step.rate_per_s:g} requests/s, {row.goodput_per_s:.2g} a second were answered well; "
            f"those that were answered began within {p95:.0f} ms (p95)."
        )
    if refused:
        told = sum(sample.retry_after_s is not None for sample in refused)
        yield (
            f"{len(refused)} of {len(row.samples)} were refused, within "
            f"{row.value('refusal_p99_ms') or 0:.0f} ms (p99); {told} of them were told when to come back."
        )


def _left(row: Row, following: Row | None, scrapes: Sequence[Scrape]) -> str:
    end = max(sample.end_unix_s for sample in row.samples)
    until = following.window[0] if following else end + LOOK_S
    left = row.outcomes["left"]
    lowest = Window(scrapes, end + LOOK_S, until).lowest(RUNNING)
    if lowest is None and Window(scrapes, 0.0, math.inf).lowest(RUNNING) is None:
        return f"{left} clients left early; the server shows no metric that says whether it noticed."
    if lowest is None:
        return f"{left} clients left early; what became of their work is not seen in so short a --pause."
    noticed = "let go of them" if lowest == 0 else f"still worked on {lowest:.0f}"
    return f"{left} clients left early, and afterwards the engine had {noticed}."


def _drained(row: Row) -> str:
    ended = row.outcomes
    return (
        f"After the signal {ended['refused']} requests were refused and {ended['no_connection']} found "
        f"nobody, since the server had gone; {ended['cut'] + ended['error_event']} answers were cut."
    )


def _burst(rows: Sequence[Row]) -> Iterator[str]:
    by_name = {row.step.name: row for row in rows}
    before, after = by_name.get("before"), by_name.get("after")
    usual = before.value("ttft_p95_ms") if before else None
    if after is None or usual is None:
        return
    slow = [s.into_s for s in after.samples if s.outcome != "ok" or (s.first_ms or 0.0) > usual]
    settled = quantile(slow, 1.0) if slow else 0.0
    yield (
        f"Before the burst the first token came within {usual:.0f} ms (p95); the last request that was "
        f"slower or refused came {settled or 0:.1f} s after the burst's end."
    )
