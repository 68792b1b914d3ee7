"""Sees an engine that is alive and does not move: a stopped process looks healthy from outside.

The engine is heard of whenever it finishes a step; when that takes long it is asked, and answers
between two steps. So neither idleness nor a long prefill is taken for standing still, as long as
single steps are shorter than the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from service.chat.life import Life
from service.engine.protocol import Engine
from service.errors import EngineUnavailable, ServiceError

LOOKS = 10  # within the limit


class Watch:
    """Ends what runs when the engine has stood still for `limit_s`, and opens again when it moves."""

    def __init__(
        self, engine: Engine, life: Life, limit_s: float, end_all: Callable[[ServiceError], None]
    ) -> None:
        self._engine = engine
        self._life = life
        self._limit_s = limit_s
        self._end_all = end_all
        self._watching: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[None] | None = None
        self._steps = -1
        self._heard_s = time.monotonic()

    async def start(self) -> None:
        """Begin to watch an engine that runs."""
        self._heard_s = time.monotonic()
        self._watching = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Watch no longer."""
        for task in (self._watching, self._asked):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        while True:
            self._look(time.monotonic())
            await asyncio.sleep(self._limit_s / LOOKS)

    def _look(self, now_s: float) -> None:
        if self._engine.steps != self._steps:
            self._steps = self._engine.steps
            self._heard_s = now_s
            self._life.moves()
        silence_s = now_s - self._heard_s
        if silence_s > self._limit_s / 2 and (self._asked is None or self._asked.done()):
            self._asked = asyncio.create_task(self._ask())
        if silence_s > self._limit_s and self._life.stands_still():
            self._end_all(EngineUnavailable("The engine has stopped answering; try again later."))

    async def _ask(self) -> None:
        with contextlib.suppress(ServiceError):  # a dead engine is noticed elsewhere
            await self._engine.ping()
