"""A straight relation between a time and two things it depends on, learned as samples come.

    y  ≈  base + slope_a · a + slope_b · b          base, slopes ≥ 0

Old samples fade. A sample far off the line is taken as only moderately far, so that one stall does
not bend it; if many are, what counts as far grows with them, and the line follows.
"""

from __future__ import annotations

MEMORY = 64.0  # samples: the weight of one is gone by a third after so many more of its weight
FAR = 4.0  # times the usual distance from the line, and so many times what the line says
TIMES = 2.0
RIDGE = 0.002  # a slope is believed if its cause has varied by a good deal more than a twentieth of its mean
SETTLED = 4.0  # samples before any can be far off


class Trend:
    """The relation. It is unknown before the first sample."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._a = self._b = self._y = 0.0  # means
        self._aa = self._ab = self._bb = self._ay = self._by = 0.0  # covariances
        self._distance = 0.0
        self._line: tuple[float, float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether there has been a sample."""
        return self._weight > 0

    def add(self, y: float, a: float, b: float = 0.0, weight: float = 1.0) -> None:
        """Learn from a sample."""
        if self._weight:
            y = self._nearer(y, a, b, weight)
        self._weight = self._weight * (1 - min(1.0, weight / MEMORY)) + weight
        rate = weight / self._weight
        da, db, dy = a - self._a, b - self._b, y - self._y
        self._a += rate * da
        self._b += rate * db
        self._y += rate * dy
        keep = 1 - rate
        self._aa = keep * (self._aa + rate * da * da)
        self._ab = keep * (self._ab + rate * da * db)
        self._bb = keep * (self._bb + rate * db * db)
        self._ay = keep * (self._ay + rate * da * dy)
        self._by = keep * (self._by + rate * db * dy)
        self._line = None

    def at(self, a: float, b: float = 0.0) -> float:
        """What the line says. Nothing sensible while it is unknown."""
        if self._line is None:
            self._line = self._solve()
        base, slope_a, slope_b = self._line
        return base + slope_a * a + slope_b * b

    def _nearer(self, y: float, a: float, b: float, weight: float) -> float:
        said = self.at(a, b)
        off = y - said
        if self._weight >= SETTLED and abs(off) > (far := max(FAR * self._distance, TIMES * said)):
            off = far if off > 0 else -far
        self._distance += min(1.0, max(weight, 1.0) / 16) * (abs(off) - self._distance)
        return said + off

    def _solve(self) -> tuple[float, float, float]:
        slope_a, slope_b = self._slopes()
        base = self._y - slope_a * self._a - slope_b * self._b
        if base >= 0:
            return base, slope_a, slope_b
        # What costs nothing when there is nothing to do: a line through zero and through the means.
        shrink = self._y / (self._y - base)
        return 0.0, slope_a * shrink, slope_b * shrink

    def _slopes(self) -> tuple[float, float]:
        aa = self._aa + RIDGE * self._a**2
        bb = self._bb + RIDGE * self._b**2
        determinant = aa * bb - self._ab**2
        if determinant > 0:
            slope_a = (self._ay * bb - self._by * self._ab) / determinant
            slope_b = (self._by * aa - self._ay * self._ab) / determinant
            if slope_a >= 0 and slope_b >= 0:
                return slope_a, slope_b
        alone_a = max(0.0, self._ay / aa) if aa > 0 else 0.0
        alone_b = max(0.0, self._by / bb) if bb > 0 else 0.0
        # One of the two explains it alone: the one that explains more.
        if alone_a * self._ay >= alone_b * self._by:
            return alone_a, 0.0
        return 0.0, alone_b
