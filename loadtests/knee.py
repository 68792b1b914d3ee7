"""The knee: the most load whose answers are still good, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.summary import Row

DRAWS = 2000
SEED = 1
STRETCHES = 10
LOW, HIGH = 0.025, 0.975

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knee:
    """Rates in requests per second. `low` and `high` enclose the knee with 95 % confidence, as far as the
    chance of which requests came when can move it."""

    rate: float
    low: float
    high: float
    censored: bool  # even the highest rate was held: the knee lies beyond it
    row: Row  # the step whose figures say what the limit is: the first that did not hold, or the last


def find(rows: Sequence[Row], hold_share: float) -> Knee | None:
    """From the steps of the open loop; None when there are none.

    The share of good answers is made to fall with the rate (pooling neighbours that contradict it), and the
    knee is where it crosses `hold_share`, by a straight line between two steps. The interval comes from
    shares that are drawn anew, as they could have come out by chance.
    """
    steps = sorted((row for row in rows if row.step.part == "rate"), key=lambda row: row.step.rate_per_s)
    if not steps:
        return None
    rates = np.array([row.step.rate_per_s for row in steps])
    counts = np.array([len(row.samples) for row in steps])
    good = np.array([row.good for row in steps])
    rate = _crossing(rates, good / counts, counts, hold_share)
    drawn = _drawn(steps, rates, counts, hold_share)
    held = bool(_falling(good / counts, counts)[-1] >= hold_share)
    after = next((row for row, r in zip(steps, rates, strict=True) if r > rate), steps[-1])
    low, high = np.quantile(drawn, [LOW, HIGH])
    return Knee(rate, min(float(low), rate), max(float(high), rate), held, after)


def _drawn(steps: Sequence[Row], rates: Floats, counts: npt.NDArray[np.int64], hold: float) -> Floats:
    """The crossing, for shares as they could have come out: Jeffreys' posterior, so that ten of ten is no
    certainty, of as many requests as are worth anything when bad answers come in groups.
    """
    source = np.random.default_rng(SEED)
    worth = counts / np.array([_grouping(row) for row in steps])
    shares = np.array([row.good for row in steps]) / counts
    draws = source.beta(shares * worth + 0.5, (1 - shares) * worth + 0.5, size=(DRAWS, len(steps)))
    return np.array([_crossing(rates, draw, counts, hold) for draw in draws])


def _grouping(row: Row) -> float:
    """By how much the share of good answers varies more from one stretch of the step to the next than if
    each were decided alone: Pearson's chi-squared over its degrees of freedom, at least 1.
    """
    share = row.good / len(row.samples)
    stretches = [part for part in np.array_split(np.array(row.verdicts, float), STRETCHES) if part.size]
    if not 0 < share < 1 or len(stretches) < 2:
        return 1.0
    apart = [(part.mean() - share) ** 2 * part.size / (share * (1 - share)) for part in stretches]
    return max(1.0, float(np.sum(apart)) / (len(stretches) - 1))


def _crossing(rates: Floats, shares: Floats, counts: npt.NDArray[np.int64], hold: float) -> float:
    falling = _falling(shares, counts)
    below = np.flatnonzero(falling < hold)
    if not below.size:
        return float(rates[-1])
    first = int(below[0])
    if first == 0:
        return float(rates[0] * falling[0] / hold)  # good answers grow no faster than from nothing at rate 0
    high, low = falling[first - 1], falling[first]
    return float(rates[first - 1] + (rates[first] - rates[first - 1]) * (high - hold) / (high - low))


def _falling(shares: Floats, counts: npt.NDArray[np.int64]) -> Floats:
    """The nearest shares that never rise: pool adjacent violators."""
    blocks: list[tuple[float, float, int]] = []  # share, weight, steps
    for share, count in zip(shares, counts, strict=True):
        blocks.append((float(share), float(count), 1))
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (one, weight, some), (two, more, others) = blocks.pop(), blocks.pop()
            total = weight + more
            blocks.append(((one * weight + two * more) / total, total, some + others))
    return np.repeat([share for share, _, _ in blocks], [steps for _, _, steps in blocks])
