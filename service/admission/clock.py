"""What admission asks of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will happen, unless it is called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has already happened."""


class Clock(Protocol):
    """Seconds on one steady scale, and alarms on it."""

    def now(self) -> float:
        """The time; only differences mean anything."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Have `callback` called from the event loop after `delay_s`."""


class LoopClock:
    """The machine's monotonic clock, with the running event loop's alarms."""

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)
