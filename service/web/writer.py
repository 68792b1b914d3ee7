"""Writes a response body from a plain function call, without a task for every write.

ASGI's `send` is a coroutine, and awaiting it takes a task; waking one for every token of every
stream costs more than the token's own work. Yet a server suspends in `send` only when the client
reads too slowly. So each `send` is driven here by hand: as a rule it ends at its first step, and only
the one that waits for the client is handed to a task, while later bytes are gathered behind it.

Where the server offers a shorter way than `send` for a chunk (`web.chunks`), that is taken first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Send

from service.web.steps import rest

MOST_UNSENT_BYTES = 2**24  # for one client; who lets more wait is taken to have left
PIECE_BYTES = 2**16
EVENT_END = b"\n\n"


class Writer:
    """The body of one response. `over` is done when the last byte has been handed to the server.

    `directly` writes a chunk at once, or says that it cannot just now.
    """

    def __init__(
        self,
        send: Send,
        on_behind: Callable[[], None],
        on_caught_up: Callable[[], None],
        directly: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._send = send
        self._directly = directly
        self._on_behind = on_behind
        self._on_caught_up = on_caught_up
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None  # runs while the client is behind
        self._unsent = bytearray()
        self._end: Callable[[], bytes] | None = None
        self._ended = False  # the last bytes are with the server
        self.over: asyncio.Future[None] = self._loop.create_future()

    def write(self, data: bytes) -> None:
        """Send `data` now, or as soon as the client has read what is before it."""
        if self._end is not None:
            return
        if self._task is not None:
            self._unsent += data
            if len(self._unsent) > MOST_UNSENT_BYTES and not self.over.done():
                self.over.set_exception(ConnectionError("the client does not read"))
        elif self._directly is None or not self._directly(data):
            self._send_now(data)

    def write_last(self, data: bytes, end: Callable[[], bytes]) -> None:
        """Send `data` and then what `end` returns, asked when its turn has come. The first call counts."""
        if self._end is not None:
            return
        self._end = end
        if self._task is not None:
            self._unsent += data
        else:
            self._send_now(self._completed(data))

    @property
    def behind(self) -> bool:
        """Whether bytes wait for the client to read."""
        return self._task is not None

    def abandon(self) -> None:
        """Stop waiting for the client."""
        if self._task is not None:
            self._task.cancel()

    def _send_now(self, data: bytes) -> None:
        sending: Any = self._send(self._message(data))
        try:
            awaited = sending.send(None)
        except StopIteration:
            if self._ended:
                self._finish()
        else:
            self._on_behind()
            self._task = self._loop.create_task(self._catch_up(sending, awaited))

    async def _catch_up(self, sending: Coroutine[Any, Any, None], awaited: Any) -> None:
        try:
            await rest(sending, awaited)
            while self._unsent or (self._end is not None and not self._ended):
                data = self._piece()
                await self._send(self._message(data if self._unsent else self._completed(data)))
        except Exception as exc:
            if not self.over.done():
                self.over.set_exception(exc)
            return
        finally:
            self._on_caught_up()
        self._task = None
        if self._ended:
            self._finish()

    def _piece(self) -> bytes:
        """Whole events, as many as fit: for each piece the client has the time it gets to read one."""
        end = self._unsent.rfind(EVENT_END, 0, PIECE_BYTES)
        if end < 0:
            end = self._unsent.find(EVENT_END)
        size = end + len(EVENT_END) if end >= 0 else len(self._unsent)
        data = bytes(self._unsent[:size])
        del self._unsent[:size]
        return data

    def _completed(self, data: bytes) -> bytes:
        """`data`, with the end behind it where the end is known."""
        if self._end is None:
            return data
        self._ended = True
        return data + self._end()

    def _message(self, data: bytes) -> dict[str, Any]:
        return {"type": "http.response.body", "body": data, "more_body": not self._ended}

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
