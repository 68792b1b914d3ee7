"""Looks for the knee: doubles the rate until answers stop being good, then halves the space between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

TIMES = 2.0
LEAST_PER_S = 0.02
NEAR = 1.15  # a bracket this narrow is narrow enough


@dataclass(slots=True)
class Sweep:
    """`holds` runs one step at a rate and says whether enough of its answers were good."""

    holds: Callable[[float], bool]
    most_steps: int = 8
    held: list[float] = field(default_factory=list)
    broke: list[float] = field(default_factory=list)

    def run(self, first_per_s: float) -> None:
        """Try rates until the knee is bracketed closely, or the steps are used up."""
        rate: float | None = first_per_s
        while rate is not None and len(self.held) + len(self.broke) < self.most_steps:
            (self.held if self.holds(rate) else self.broke).append(rate)
            rate = self._next()

    def _next(self) -> float | None:
        low, high = max(self.held, default=None), min(self.broke, default=None)
        if high is None:
            return None if low is None else low * TIMES
        if low is None:
            return high / TIMES if high / TIMES >= LEAST_PER_S else None
        if low >= high:  # chance: a lower rate broke and a higher one held
            return None
        return float((low * high) ** 0.5) if high / low > NEAR else None
