"""Measures how late the event loop is: what blocks it delays every stream, and no request shows it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.1


async def sample_loop_lag(observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
    """Until cancelled, set a timer and tell how late it rang."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        observe(max(0.0, loop.time() - due))
