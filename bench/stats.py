"""Quantiles, spreads, and ratios of what was measured in the same turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values, and their ends."""

    median: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all lie below, between neighbours where it falls between them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(quantile(values, 0.5), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Turn by turn, so that a machine that changes its pace from turn to turn does not count."""
    return spread([mine / other for mine, other in zip(ours, theirs, strict=True)])


def excesses(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """By how much ours is more, turn by turn."""
    return spread([mine - other for mine, other in zip(ours, theirs, strict=True)])
