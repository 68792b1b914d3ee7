"""How the pictures of a report are drawn. Each function says whether there was anything to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from loadtests.knee import Knee
from loadtests.sample import OUTCOMES, Sample
from loadtests.summary import PHASES, Row

COLOURS = {"p50": "#2a6f97", "p95": "#e09f3e", "p99": "#9e2a2b"}
PHASE_COLOURS = ("#adb5bd", "#6c757d", "#e09f3e", "#9e2a2b", "#2a6f97")
OUTCOME_COLOURS = (
    "#2a6f97",
    "#e09f3e",
    "#adb5bd",
    "#9e2a2b",
    "#c1121f",
    "#780000",
    "#540b0e",
    "#000000",
    "#5f0f40",
)
BYTES = (("headers", "headers_p50_ms"), ("first content", "ttft_p50_ms"), ("last byte", "total_p50_ms"))
RATE, USERS, MS = "requests/s offered", "users at a time", "ms"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the pictures are drawn from."""

    rows: Sequence[Row]
    knee: Knee | None
    ttft_ms: float  # what a good answer may take to its first token
    lag_ms: float  # what sending may be late

    def part(self, name: str) -> list[Row]:
        """The rows of one part."""
        return [row for row in self.rows if row.step.part == name]


def _ladder(axes: Axes, rows: Sequence[Row], kind: str, x: str, at: Callable[[Row], float]) -> bool:
    """Percentiles against the load, both on logarithmic scales where they span much."""
    if len(rows) < 2:
        return False
    rows = sorted(rows, key=at)
    for percentile, colour in COLOURS.items():
        points = [(at(row), row.value(f"{kind}_{percentile}_ms")) for row in rows]
        shown = [(load, ms) for load, ms in points if ms is not None]
        axes.plot(*zip(*shown, strict=True), "o-", label=percentile, color=colour) if shown else None
    axes.set(xlabel=x, ylabel=MS, xscale="log")
    axes.set_xticks(
        [at(row) for row in rows],
        [f"{at(row):.3g}" for row in rows],
        rotation=45 if len(rows) > 5 else 0,
        fontsize=8,
    )
    axes.minorticks_off()
    axes.legend(frameon=False)
    return True


def ttft_users(axes: Axes, facts: Facts) -> bool:
    """Time to the first token against users."""
    return _ladder(axes, facts.part("concurrency"), "ttft", USERS, lambda row: row.step.users)


def ttft_rate(axes: Axes, facts: Facts) -> bool:
    """Time to the first token against the rate of arrivals."""
    drawn = _ladder(axes, facts.part("rate"), "ttft", RATE, lambda row: row.step.rate_per_s)
    if drawn:
        axes.axhline(facts.ttft_ms, color="grey", linestyle=":", label="still good")
    return drawn


def tpot_users(axes: Axes, facts: Facts) -> bool:
    """Time per further token against users."""
    return _ladder(axes, facts.part("concurrency"), "tpot", USERS, lambda row: row.step.users)


def throughput(axes: Axes, facts: Facts) -> bool:
    """Output tokens against users."""
    rows = facts.part("concurrency")
    if len(rows) < 2:
        return False
    users = [row.step.users for row in rows]
    axes.plot(users, [row.tokens_per_s for row in rows], "o-", color=COLOURS["p50"])
    axes.set(xlabel=USERS, ylabel="output tokens/s", xscale="log")
    axes.set_xticks(users, [str(count) for count in users])
    axes.minorticks_off()
    return True


def goodput(axes: Axes, facts: Facts) -> bool:
    """Good answers against the rate of arrivals, and the knee."""
    rows = sorted(facts.part("rate"), key=lambda row: row.step.rate_per_s)
    if len(rows) < 2:
        return False
    rates = [row.step.rate_per_s for row in rows]
    axes.plot([0, max(rates)], [0, max(rates)], ":", color="grey", label="all of them good")
    axes.plot(rates, [row.goodput_per_s for row in rows], "o-", color=COLOURS["p50"], label="good answers")
    if facts.knee is not None:
        axes.axvspan(facts.knee.low, facts.knee.high, alpha=0.15, color=COLOURS["p95"], label="knee, 95 %")
        axes.axvline(facts.knee.rate, color=COLOURS["p95"])
    axes.set(xlabel=RATE, ylabel="good answers/s", xlim=(0, None))
    axes.legend(frameon=False)
    return True


def lengths(axes: Axes, facts: Facts) -> bool:
    """Time to the first token against the length of the prompt."""
    found = [s for row in facts.part("length") for s in row.samples if s.outcome == "ok" and s.first_ms]
    if not found:
        return False
    counted = all(sample.prompt_tokens for sample in found)
    sizes = [sample.prompt_tokens if counted else sample.words for sample in found]
    axes.plot(sizes, [s.first_ms for s in found], "o", alpha=0.5, color=COLOURS["p50"])  # type: ignore[arg-type]
    axes.set(xlabel="prompt tokens" if counted else "prompt words", ylabel=MS, xlim=(0, None))
    return True


def phases(axes: Axes, facts: Facts) -> bool:
    """The server's own phases, stacked."""
    rows = [row for row in facts.rows if row.phase_means()]
    if not rows:
        return False
    left = [0.0] * len(rows)
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        widths = [row.phase_means().get(phase, 0.0) for row in rows]
        label = phase.removesuffix("_ms")
        axes.barh([row.name for row in rows], widths, left=left, color=colour, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    return _bars(axes, "ms, mean of the answers")


def outcomes(axes: Axes, facts: Facts) -> bool:
    """How the requests of each step ended."""
    left = [0] * len(facts.rows)
    for outcome, colour in zip(OUTCOMES, OUTCOME_COLOURS, strict=True):
        widths = [row.outcomes[outcome] for row in facts.rows]
        if any(widths):
            axes.barh([row.name for row in facts.rows], widths, left=left, color=colour, label=outcome)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    return bool(facts.rows) and _bars(axes, "requests")


def _bars(axes: Axes, label: str) -> bool:
    axes.set_xlabel(label)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    return True


def streaming(axes: Axes, facts: Facts) -> bool:
    """First content and last byte, streamed and whole."""
    rows = facts.part("streaming")
    if len(rows) < 2:
        return False
    for place, (name, measure) in enumerate(BYTES):
        heights = [row.value(measure) or 0.0 for row in rows]
        places = [number + place * 0.28 for number in range(len(rows))]
        bars = axes.bar(places, heights, 0.26, label=name, color=list(COLOURS.values())[place])
        axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks([number + 0.28 for number in range(len(rows))], [row.step.name for row in rows])
    axes.set_ylabel("ms, p50")
    axes.legend(frameon=False)
    return True


def both_sides(axes: Axes, facts: Facts) -> bool:
    """The client's time to the first token against the server's."""
    pairs = [pair for row in facts.rows for sample in row.samples if (pair := _pair(sample))]
    if not pairs:
        return False
    server, client = zip(*pairs, strict=True)
    axes.plot([0, max(client)], [0, max(client)], ":", color="grey")
    axes.plot(server, client, ".", alpha=0.4, color=COLOURS["p50"])
    axes.set(xlabel="first token by the server, ms", ylabel="by the client, ms", xlim=(0, None))
    return True


def _pair(sample: Sample) -> tuple[float, float] | None:
    told = (sample.phases or {}).get("ttft_ms")
    if told is None or sample.first_ms is None or sample.outcome != "ok":
        return None
    return told, sample.first_ms - sample.sent_ms


def lag(axes: Axes, facts: Facts) -> bool:
    """How late requests were sent."""
    rows = [row for row in facts.rows if row.step.open]
    if not rows:
        return False
    for row in rows:
        lags = sorted(sample.sent_ms for sample in row.samples)
        axes.plot(
            lags, [(n + 1) / len(lags) for n in range(len(lags))], drawstyle="steps-post", label=row.name
        )
    axes.axvline(facts.lag_ms, color="grey", linestyle=":")
    axes.set(xlabel="ms after the intended instant", ylabel="share of requests", xscale="log")
    axes.legend(frameon=False, fontsize=7)
    return True


def timeline(axes: Axes, facts: Facts) -> bool:
    """Each request at its instant."""
    rows = [r for r in facts.rows if r.step.part in ("steady", "burst", "overload", "disconnects", "drain")]
    if not rows:
        return False
    zero = rows[0].samples[0].intended_unix_s
    for outcome, colour in zip(OUTCOMES, OUTCOME_COLOURS, strict=True):
        found = [s for row in rows for s in row.samples if s.outcome == outcome]
        times = [s.intended_unix_s - zero for s in found]
        delays = [s.end_ms if s.first_ms is None else s.first_ms for s in found]
        axes.plot(times, delays, ".", color=colour, label=outcome) if found else None
    axes.set(xlabel="s since the beginning", ylabel="ms to the first token, or to the refusal")
    axes.legend(frameon=False)
    return True
