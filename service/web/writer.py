"""Writes a response body from a plain function call, without a task for every write.

ASGI's `send` is a coroutine, and awaiting it takes a task; waking one for every token of every
stream costs more than the token's own work. Yet a server suspends in `send` only when the client
reads too slowly. So each `send` is driven here by hand: as a rule it ends at its first step, and only
the one that waits for the client is handed to a task, while later bytes are gathered behind it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from starlette.types import Send


class Writer:
    """The body of one response. `over` is done when the last byte has been handed to the server."""

    def __init__(self, send: Send, on_behind: Callable[[], None], on_caught_up: Callable[[], None]) -> None:
        self._send = send
        self._on_behind = on_behind
        self._on_caught_up = on_caught_up
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None  # runs while the client is behind
        self._unsent = bytearray()
        self._last = False
        self.over: asyncio.Future[None] = self._loop.create_future()

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send `data` now, or as soon as the client has read what is before it."""
        if self._task is not None:
            self._unsent += data
            self._last |= last
            return
        sending: Any = self._send({"type": "http.response.body", "body": data, "more_body": not last})
        try:
            awaited = sending.send(None)
        except StopIteration:
            if last:
                self._finish()
        else:
            self._last |= last
            self._on_behind()
            self._task = self._loop.create_task(self._catch_up(sending, awaited))

    @property
    def behind(self) -> bool:
        """Whether bytes wait for the client to read."""
        return self._task is not None

    def abandon(self) -> None:
        """Stop waiting for the client."""
        if self._task is not None:
            self._task.cancel()

    async def _catch_up(self, sending: Coroutine[Any, Any, None], awaited: Any) -> None:
        try:
            await _rest(sending, awaited)
            while self._unsent:
                data, self._unsent = bytes(self._unsent), bytearray()
                await self._send({"type": "http.response.body", "body": data, "more_body": not self._last})
        except Exception as exc:
            if not self.over.done():
                self.over.set_exception(exc)
            return
        finally:
            self._on_caught_up()
        self._task = None
        if self._last:
            self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """What is left of a coroutine whose first step has been taken and now waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as exc:
            step = partial(coroutine.throw, exc)
        else:
            step = partial(coroutine.send, value)
        try:
            awaited = step()
        except StopIteration:
            return
