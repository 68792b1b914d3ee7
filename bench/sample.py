"""One turn of one contestant, in the measures that are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from bench.outcome import Outcome
from bench.stats import quantile

Measure = Literal[
    "tokens_per_s",
    "cpu_us_per_token",
    "cpu_ms_per_request",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "peak_mb",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured, and how much other programs disturbed it."""

    contestant: str
    shape: str
    turn: int
    tokens_per_s: float
    cpu_us_per_token: float  # of the front end's process alone
    cpu_ms_per_request: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    peak_mb: float  # of the front end's process
    others: float  # share of the machine that other programs took meanwhile
    client_late: float  # share of the turn that the client's own process had to wait for a CPU
    load: float  # the system's load average as the turn began

    def value(self, measure: Measure) -> float:
        """The value of one measure."""
        return float(getattr(self, measure))


@dataclass(slots=True)
class Results:
    """All samples. A turn that was disturbed and could be repeated is kept apart."""

    samples: list[Sample] = field(default_factory=list)
    disturbed: list[Sample] = field(default_factory=list)
    complete: bool = True  # False when the time was up before the last round

    @property
    def contestants(self) -> list[str]:
        """In the order of their first turn."""
        return list(dict.fromkeys(sample.contestant for sample in self.samples))

    def values(self, contestant: str, shape: str, measure: Measure) -> list[float]:
        """Of every turn, in the order of turns; empty where there was none."""
        found = [s for s in self.samples if (s.contestant, s.shape) == (contestant, shape)]
        return [sample.value(measure) for sample in sorted(found, key=lambda sample: sample.turn)]

    def best(self, shape: str, measure: Measure) -> list[float]:
        """The highest of all contestants in each turn."""
        columns = [self.values(name, shape, measure) for name in self.contestants]
        return [max(row) for row in zip(*columns, strict=True)]


def sample(contestant: str, shape: str, turn: int, outcome: Outcome, others: float, load: float) -> Sample:
    """The measures of an outcome."""
    return Sample(
        contestant,
        shape,
        turn,
        tokens_per_s=outcome.tokens / outcome.seconds,
        cpu_us_per_token=outcome.cpu_s / outcome.tokens * 1e6,
        cpu_ms_per_request=outcome.cpu_s / outcome.requests * 1e3,
        ttft_p50_ms=quantile(outcome.ttft_s, 0.5) * 1e3,
        ttft_p99_ms=quantile(outcome.ttft_s, 0.99) * 1e3,
        peak_mb=outcome.peak_mb,
        others=others,
        client_late=outcome.client_waited_s / outcome.seconds,
        load=load,
    )


def most_disturbed(samples: Iterable[Sample]) -> float:
    """The largest share of the machine that others took in any of these."""
    return max((sample.others for sample in samples), default=0.0)
