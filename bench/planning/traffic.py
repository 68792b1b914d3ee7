"""What comes: requests of drawn lengths, at random instants, each beginning with the prefix of its group."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST = 4.0  # how far above its middle a drawn length may lie


@dataclass(frozen=True, slots=True)
class Mix:
    """A kind of load. Lengths in tokens; `spread` is the sigma of a lognormal around their medians."""

    name: str
    prompt_tokens: int  # without the shared prefix
    output_tokens: int
    prefix_tokens: int = 0  # equal for all requests of a group
    groups: int = 1  # tenants, agents, documents: whatever shares a prefix
    skew: float = 1.0  # the exponent of Zipf's law; 0: all groups ask equally often
    spread: float = 0.0

    def shares(self) -> list[float]:
        """The share of requests that each group has, the largest first."""
        weights = [rank**-self.skew for rank in range(1, self.groups + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]


@dataclass(slots=True)
class Request:
    """One request and what became of it; times in seconds from the start."""

    at: float
    group: int
    prefix: int
    prompt: int  # with the prefix
    output: int
    first: float | None = None
    ended: float | None = None
    cached: int = 0
    refused: bool = False

    @property
    def ttft_s(self) -> float:
        """Endless where there was no first token."""
        return math.inf if self.first is None else self.first - self.at

    @property
    def total_s(self) -> float:
        """Endless where there was no end."""
        return math.inf if self.ended is None else self.ended - self.at


def arrivals(
    mix: Mix, rate: float, seconds: float, seed: int, groups: Sequence[int], bounds: Sequence[float]
) -> Iterator[Request]:
    """A Poisson process of requests of some groups, in the order of their instants. `bounds` are the groups'
    shares, each with those before it added."""
    draw = random.Random(seed)
    at = draw.expovariate(rate)
    while at < seconds:
        (group,) = draw.choices(groups, cum_weights=bounds)
        prompt = mix.prefix_tokens + _length(mix.prompt_tokens, mix.spread, draw)
        yield Request(at, group, mix.prefix_tokens, prompt, _length(mix.output_tokens, mix.spread, draw))
        at += draw.expovariate(rate)


def _length(middle: int, spread: float, draw: random.Random) -> int:
    factor = math.exp(draw.gauss(0.0, 1.0) * spread) if spread else 1.0
    return max(1, round(middle * min(factor, LONGEST)))
