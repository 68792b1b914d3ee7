"""How many answers are being written at once: the figure a pace per token has to be read against."""

from __future__ import annotations

import time


class Crowd:
    """Counts who is there, and keeps the integral over time, so that anybody's mean company costs nothing.

    A count taken at the end would be wrong for streams that began together and end together: the
    last of them would look as if it had been alone.
    """

    def __init__(self) -> None:
        self.size = 0
        self._area = 0.0
        self._since_s = time.monotonic()

    def enter(self, now_s: float) -> float:
        """Count one in; returns the integral so far."""
        area = self._until(now_s)
        self.size += 1
        return area

    def leave(self, now_s: float) -> float:
        """Count one out; returns the integral so far."""
        area = self._until(now_s)
        self.size -= 1
        return area

    def _until(self, now_s: float) -> float:
        if now_s > self._since_s:
            self._area += self.size * (now_s - self._since_s)
            self._since_s = now_s
        return self._area
