"""Whether the service takes requests: it starts, opens, drains and is gone, in that order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NoReturn

from service.errors import Draining, EngineUnavailable, NotReady


class Stage(Enum):
    """Where the service is in its life. The engine's standing still is the one step that goes back."""

    STARTING = "starting"
    OPEN = "open"
    STANDING = "standing"  # the engine does not move
    DRAINING = "draining"
    FAILED = "failed"


class Life:
    """The stage, and how many answers are under way. Everything happens on the event loop."""

    def __init__(self) -> None:
        self.stage = Stage.STARTING
        self.failure: Exception | None = None
        self.in_flight = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._begun = asyncio.Event()

    async def start(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Run the steps one after another, then open; a step that raises ends the start."""
        try:
            for step in steps:
                await step()
        except Exception as exc:
            self.failure = exc
            self.stage = Stage.FAILED
        if self.stage is Stage.STARTING:
            self.stage = Stage.OPEN
        self._begun.set()

    async def begun(self) -> None:
        """Returns when the start is over; raises what made it fail."""
        await self._begun.wait()
        if self.failure is not None:
            raise self.failure

    def drain(self) -> None:
        """Take no new requests; those under way go on."""
        if self.stage is not Stage.FAILED:
            self.stage = Stage.DRAINING

    def stands_still(self) -> bool:
        """The engine does not move: take no requests. True when that is news."""
        news = self.stage is Stage.OPEN
        if news:
            self.stage = Stage.STANDING
        return news

    def moves(self) -> None:
        """The engine moves again, if it ever stood still."""
        if self.stage is Stage.STANDING:
            self.stage = Stage.OPEN

    def check(self) -> None:
        """Raises what a request that came now would be refused with."""
        if self.stage is not Stage.OPEN:
            self.refuse()

    def check_moving(self) -> None:
        """Raises EngineUnavailable while the engine stands still: what is handed to it then would wait."""
        if self.stage is Stage.STANDING:
            self.refuse()

    def enter(self) -> None:
        """Count one answer in.

        Raises:
            NotReady, Draining: when the service takes no requests.
        """
        self.check()
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        """Count one answer out."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._empty.set()

    def refuse(self) -> NoReturn:
        """Say why no request is taken now."""
        if self.stage is Stage.DRAINING:
            raise Draining("The service is shutting down and takes no new requests; retry elsewhere.")
        if self.stage is Stage.STANDING:
            raise EngineUnavailable("The engine does not answer at the moment; try again later.")
        raise NotReady("The model is still being loaded; try again in a few seconds.")

    async def emptied(self) -> None:
        """Returns when no answer is under way."""
        await self._empty.wait()
