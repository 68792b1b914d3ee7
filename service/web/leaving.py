"""Clients that leave before they have what they asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from service.web.steps import rest

T = TypeVar("T")


async def client_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What `work` returns. It is cancelled when the client leaves; nobody watches for that until it waits.

    Raises:
        ClientDisconnect: the client has left.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    with _Watch(receive) as watch:
        try:
            return await rest(work, awaited)
        except asyncio.CancelledError:
            if watch.has_cancelled():
                raise ClientDisconnect from None
            raise


class _Watch:
    """Cancels the task it was made in once the client is gone, while the block lasts."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._gone = asyncio.ensure_future(client_gone(receive))
        self._gone.add_done_callback(self._left)
        self._over = self._cancelled = False

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._gone.cancel()

    def has_cancelled(self) -> bool:
        """Whether the task was cancelled by this, and by nobody else."""
        return self._cancelled and self._task.uncancel() == 0

    def _left(self, _: asyncio.Future[None]) -> None:
        if not self._over:
            self._cancelled = True
            self._task.cancel()
