"""What one contestant did in one turn, as its client saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.meter import Used


@dataclass(slots=True)
class Timing:
    """One request, in seconds of one clock; `first` is when its first text was there."""

    sent: float
    first: float | None = None
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Raw figures of one turn. Only complete, exact answers are in it: anything else is an error."""

    requests: int
    tokens: int
    seconds: float  # from the first request sent to the last byte of the last answer
    ttft_s: list[float]
    cpu_s: float  # of the front end's process alone
    peak_mb: float
    client_waited_s: float  # for a CPU: time by which its clock may be late; 0 where there is no client


def outcome(timings: Sequence[Timing], tokens: int, used: Used, *, client_waited_s: float = 0.0) -> Outcome:
    """Of requests that were answered with `tokens` tokens each."""
    return Outcome(
        requests=len(timings),
        tokens=len(timings) * tokens,
        seconds=max(timing.ended for timing in timings) - min(timing.sent for timing in timings),
        ttft_s=sorted((timing.first or timing.ended) - timing.sent for timing in timings),
        cpu_s=used.cpu_s,
        peak_mb=used.peak_mb,
        client_waited_s=client_waited_s,
    )
