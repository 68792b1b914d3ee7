"""A clock that stands until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from service.admission.clock import Clock, Timer


class HandClock(Clock):
    """Time passes when told to; alarms ring on the way."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._numbers = count()

    def now(self) -> float:
        return self._now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        alarm = _Alarm(callback)
        heapq.heappush(self._alarms, (self._now + delay_s, next(self._numbers), alarm))
        return alarm

    @property
    def alarms(self) -> int:
        """How many are still to ring."""
        return sum(1 for _, _, alarm in self._alarms if alarm.callback is not None)

    async def go(self, seconds: float) -> None:
        """Let time pass, and whoever was woken act."""
        await breathe()
        end = self._now + seconds
        while self._alarms and self._alarms[0][0] <= end:
            self._now, _, alarm = heapq.heappop(self._alarms)
            alarm.ring()
            await breathe()
        self._now = end
        await breathe()


class _Alarm(Timer):
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def ring(self) -> None:
        if self.callback is not None:
            self.callback()


async def breathe() -> None:
    """Let everything that is ready run."""
    for _ in range(4):
        await asyncio.sleep(0)
