"""When requests of an open loop arrive: an absolute schedule, the same however many processes share it."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson(rate_per_s: float, length_s: float, seed: str) -> Iterator[float]:
    """Instants in seconds from 0 up to `length_s`, with exponential times between them."""
    source = random.Random(seed)
    at = source.expovariate(rate_per_s)
    while at < length_s:
        yield at
        at += source.expovariate(rate_per_s)


def share(instants: Iterator[float], worker: int, workers: int) -> Iterator[tuple[int, float]]:
    """One worker's part, each instant with its number in the whole: together they are the whole schedule."""
    return ((number, at) for number, at in enumerate(instants) if number % workers == worker)
