"""From samples to the figures of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadtests.figures import mean, quantile
from loadtests.plan import Step
from loadtests.sample import Sample

PHASES = ("render_ms", "admission_ms", "queue_ms", "prefill_ms", "decode_ms")


@dataclass(frozen=True, slots=True)
class Row:
    """One step: its samples from when it has settled, and what follows from them."""

    MEASURES: ClassVar[Sequence[str]] = (
        "ttft_p50_ms",
        "ttft_p95_ms",
        "ttft_p99_ms",
        "tpot_p50_ms",
        "tpot_p95_ms",
        "tpot_p99_ms",
        "headers_p50_ms",
        "total_p50_ms",
        "total_p95_ms",
        "gap_p99_ms",
        "lag_p99_ms",
        "refusal_p99_ms",
        "good_share",
        "refused_share",
        "failed_share",
    )

    step: Step
    samples: Sequence[Sample]
    verdicts: Sequence[bool]  # whether each was answered well
    sent: int  # all, with those of the settling
    failed: int  # of all
    late_ms: float | None  # how late the load generator itself was, at most

    @property
    def good(self) -> int:
        """How many were answered well."""
        return sum(self.verdicts)

    @property
    def name(self) -> str:
        """Part and step."""
        return self.step.title

    @property
    def outcomes(self) -> Counter[str]:
        """How many ended how."""
        return Counter(sample.outcome for sample in self.samples)

    @property
    def seconds(self) -> float:
        """The time in which the samples were sent: the step's, or less where the requests ran out."""
        if self.step.requests and self.samples:
            return max(s.end_unix_s for s in self.samples) - self.samples[0].intended_unix_s
        return self.step.length_s - self.step.settle_s

    @property
    def offered_per_s(self) -> float:
        """Requests sent in a second."""
        return len(self.samples) / self.seconds

    @property
    def goodput_per_s(self) -> float:
        """Good answers in a second."""
        return self.good / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Output tokens in a second, of answers that came to their end."""
        return sum(s.tokens for s in self.samples if s.outcome == "ok") / self.seconds

    @property
    def cached_share(self) -> float | None:
        """Prompt tokens that the prefix cache had."""
        prompt = sum(s.prompt_tokens for s in self.samples)
        return sum(s.cached_tokens for s in self.samples) / prompt if prompt else None

    @property
    def window(self) -> tuple[float, float]:
        """First and last instant, in Unix seconds."""
        return self.samples[0].intended_unix_s, max(sample.end_unix_s for sample in self.samples)

    def times(self, of: Callable[[Sample], float | None]) -> list[float]:
        """Of all complete answers that have such a time."""
        return [t for sample in self.samples if sample.outcome == "ok" and (t := of(sample)) is not None]

    def phase_means(self) -> dict[str, float]:
        """Mean milliseconds in each phase, as the server told; empty where it tells none."""
        told = [s.phases for s in self.samples if s.phases and s.outcome == "ok"]
        found = {name: mean(p[name] for p in told if p.get(name) is not None) for name in PHASES}
        return {name: value for name, value in found.items() if value is not None}

    def value(self, measure: str) -> float | None:
        """One of `MEASURES`; None where there is nothing to measure."""
        count = len(self.samples)
        match measure.split("_"):
            case ["good", _]:
                return self.good / count if count else None
            case ["refused", _]:
                return self.outcomes["refused"] / count if count else None
            case ["failed", _]:
                return sum(s.failed for s in self.samples) / count if count else None
            case [kind, percentile, _]:
                return quantile(self._values(kind), float(percentile[1:]) / 100)
        raise KeyError(measure)

    def _values(self, kind: str) -> list[float]:
        match kind:
            case "ttft":
                return self.times(lambda s: s.first_ms)
            case "tpot":
                return self.times(lambda s: s.tpot_ms)
            case "headers":
                return self.times(lambda s: s.headers_ms)
            case "total":
                return self.times(lambda s: s.end_ms)
            case "gap":
                return [gap for s in self.samples if s.outcome == "ok" for gap in s.gaps_ms]
            case "lag":
                return [s.sent_ms for s in self.samples]
            case "refusal":
                return [s.end_ms - s.sent_ms for s in self.samples if s.outcome == "refused"]
        raise KeyError(kind)

    @property
    def lag_p99_ms(self) -> float | None:
        """Send lag."""
        return self.value("lag_p99_ms")


def rows(
    steps: Sequence[Step],
    samples: Sequence[Sample],
    good: Callable[[Sample], bool],
    late: Sequence[tuple[float, float]] = (),
) -> list[Row]:
    """One row for each step that has samples. `late`: Unix seconds, and how late the generator was then."""
    parts = list(dict.fromkeys(step.part for step in steps))
    ordered = sorted(
        steps, key=lambda step: (parts.index(step.part), step.part == "rate" and step.rate_per_s)
    )
    return [
        _row(step, mine, good, late)
        for step in ordered
        if (mine := [sample for sample in samples if sample.step == step.number])
    ]


def _row(
    step: Step, mine: list[Sample], good: Callable[[Sample], bool], late: Sequence[tuple[float, float]]
) -> Row:
    settled = [sample for sample in mine if sample.into_s >= step.settle_s] or mine
    begin, end = settled[0].intended_unix_s, max(sample.end_unix_s for sample in settled)
    lateness = [ms for unix_s, ms in late if begin <= unix_s <= end + 1]
    failed = sum(sample.failed for sample in mine)
    return Row(step, settled, list(map(good, settled)), len(mine), failed, max(lateness, default=None))
