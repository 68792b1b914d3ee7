"""What was used in the last minute: a window that slides, kept as the counts of two whole minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from service.admission.counts import Counts

MINUTE_S = 60
KEEP_S = 2 * MINUTE_S + 5  # a minute's count matters until the end of the next; 5 for clocks that differ
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of this minute and the one before, and how far this one is.

    Of the minute before, the share counts that a window of 60 s still covers, as if use had been even.
    """

    limit: int
    minute: int
    elapsed_s: float  # of this minute
    before: int
    current: int

    @property
    def used(self) -> float:
        """In the 60 s that end now."""
        return self.before * (1 - self.elapsed_s / MINUTE_S) + self.current

    @property
    def remaining(self) -> int:
        """What may be used now."""
        return max(0, int(self.limit - self.used + ROUNDING))

    @property
    def reset_s(self) -> float:
        """Until all of the limit is there again, if nothing more is used."""
        if self.current:
            return 2 * MINUTE_S - self.elapsed_s
        return MINUTE_S - self.elapsed_s if self.before else 0.0

    def wait_s(self, amount: int) -> float:
        """How long until `amount`, at most the limit, may be used, if nobody else uses anything."""
        if self.used + amount <= self.limit + ROUNDING:
            return 0.0
        room = self.limit - amount - self.current
        if room >= 0:  # what was used before must fade to `room`
            return MINUTE_S * (1 - room / self.before) - self.elapsed_s
        fading = 1 - (self.limit - amount) / self.current
        return MINUTE_S - self.elapsed_s + MINUTE_S * fading


class Minutes:
    """Limits per minute, by name. Minutes are those of the wall clock, the same for all replicas."""

    def __init__(self, counts: Counts, now: Callable[[], float] = time.time) -> None:
        self._counts = counts
        self._now = now

    async def usage(self, name: str, limit: int) -> Usage:
        """What is used."""
        now = self._now()
        minute = int(now // MINUTE_S)
        before = await self._counts.get(_key(name, minute - 1))
        current = await self._counts.get(_key(name, minute))
        # Clocks that differ may leave a count below what was given back to it.
        return Usage(limit, minute, now - minute * MINUTE_S, max(0, before), max(0, current))

    async def take(self, name: str, amount: int, limit: int) -> tuple[Usage, bool]:
        """Use `amount` if it is there; what is used then, and whether it was."""
        usage = await self.usage(name, limit)
        if usage.wait_s(amount) > 0:
            return usage, False
        usage = replace(usage, current=await self._counts.add(_key(name, usage.minute), amount, KEEP_S))
        if usage.used <= limit + ROUNDING:
            return usage, True
        # Another replica took it between our look and our taking.
        await self.change(name, usage.minute, -amount)
        return replace(usage, current=usage.current - amount), False

    async def change(self, name: str, minute: int, amount: int) -> None:
        """Correct what was used in `minute`, unless that no longer counts."""
        if amount and minute >= int(self._now() // MINUTE_S) - 1:
            await self._counts.add(_key(name, minute), amount, KEEP_S)


def _key(name: str, minute: int) -> str:
    return f"twophase/{name}/{minute}"
