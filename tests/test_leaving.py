"""Clients that leave while something is done for them."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from service.web.leaving import unless_gone


class Client:
    """Stays until it leaves; `asked` counts how often anybody looked."""

    def __init__(self) -> None:
        self.asked = 0
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> Message:
        self.asked += 1
        await self._left.wait()
        return {"type": "http.disconnect"}


class Work:
    """Takes `seconds`; knows whether it was cancelled."""

    def __init__(self, seconds: float) -> None:
        self.cancelled = False
        self._seconds = seconds

    async def run(self) -> str:
        try:
            if self._seconds:
                await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "done"


async def test_work_that_never_waits_is_done_without_a_look_at_the_client() -> None:
    client = Client()
    assert await unless_gone(Work(0).run(), client.receive) == "done"
    await asyncio.sleep(0)
    assert client.asked == 0


async def test_work_for_a_client_that_stays_is_done() -> None:
    client = Client()
    assert await unless_gone(Work(0.01).run(), client.receive) == "done"
    assert client.asked == 1


async def test_work_for_a_client_that_leaves_is_cancelled() -> None:
    client, work = Client(), Work(30)
    asyncio.get_running_loop().call_later(0.01, client.leave)
    with pytest.raises(ClientDisconnect):
        await unless_gone(work.run(), client.receive)
    assert work.cancelled


async def test_the_task_of_a_client_that_has_left_can_still_wait_with_a_limit() -> None:
    client = Client()
    client.leave()
    with pytest.raises(ClientDisconnect):
        await unless_gone(Work(30).run(), client.receive)
    with pytest.raises(TimeoutError):  # a cancellation that is still counted would come out as one
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)


async def test_a_limit_inside_the_work_is_its_own() -> None:
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "too late"
        return "in time"

    assert await unless_gone(limited(), Client().receive) == "too late"


async def test_who_cancels_the_task_sees_it_cancelled() -> None:
    work = Work(30)
    task = asyncio.create_task(unless_gone(work.run(), Client().receive))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled


async def test_a_client_that_leaves_when_the_work_is_done_cancels_nothing() -> None:
    client = Client()

    async def work() -> str:
        await asyncio.sleep(0.01)
        client.leave()  # seen after the last step of the work
        return "done"

    assert await unless_gone(work(), client.receive) == "done"
    await asyncio.sleep(0.01)


async def test_what_the_work_raises_comes_through() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless_gone(work(), Client().receive)
