"""A short load that meets every branch: each stage makes another thing scarce, and beside all of them come
callers who ask too much, leave early or write nonsense."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import httpx

CHAT = "/v1/chat/completions"
FIRST_TEXT = re.compile(rb'"content":"[^"]')
COME_BACK_S = 0.3  # sooner than Retry-After says, as callers do

MIDDLING = "257-1024"  # the prompt bucket that only `_ever_more` fills

Messages = list[dict[str, str]]


class Callers:
    """All with one key, and what they have seen. Prompts begin with a number of their own unless shared."""

    def __init__(self, url: str, key: str) -> None:
        # Given up here before the server gives it up, which could meet a request half-way.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1)
        self._web = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120, limits=limits
        )
        self._numbers = itertools.count()
        self.first_text_s: list[float] = []
        self.statuses: list[int] = []

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._web.aclose()

    async def ask(self, words: int, tokens: int) -> None:
        """A stream read to its end."""
        await self._stream(self._talk(words), tokens)

    async def ask_again(self, words: int, tokens: int) -> None:
        """A long beginning that is always the same, and a short end that is not."""
        system = {"role": "system", "content": "manual " * words}
        await self._stream([system, *self._talk(3)], tokens)

    async def ask_the_same(self) -> None:
        """All of it has been read before, but for the end of its last block."""
        await self._stream([_turn("user", "the same " + "word " * 1100)], 2)

    async def stop_short(self) -> None:
        """Reserves much and uses little: the service comes to promise its cache several times over."""
        await self._stream(self._talk(3), 1000, stop=["a", "e", "i"])

    async def leave_early(self) -> None:
        """Asks for more than it may have, which is cut to what it may, and leaves after a few words."""
        await self._stream(self._talk(20), 100_000, most_chunks=3)

    async def talk_too_long(self) -> None:
        """A conversation whose oldest turns are left out."""
        turns = [turn for _ in range(8) for turn in (*self._talk(1200), _turn("assistant", "yes"))]
        await self._stream([*turns, *self._talk(3)], 2, truncation="auto")

    async def ask_too_much(self) -> None:
        """A prompt that is refused for its length."""
        await self._stream(self._talk(9000), 2)

    async def write_nonsense(self) -> None:
        """A value that no field has."""
        await self._stream(self._talk(1), 2, temperature=-1)

    async def _stream(
        self, messages: Messages, tokens: int, most_chunks: int = 10**6, **fields: object
    ) -> None:
        body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True, **fields}
        began = time.perf_counter()
        async with self._web.stream("POST", CHAT, json=body) as response:
            self.statuses.append(response.status_code)
            had_text = False
            async for chunk in response.aiter_raw():
                if not had_text and FIRST_TEXT.search(chunk):
                    had_text = True
                    self.first_text_s.append(time.perf_counter() - began)
                most_chunks -= 1
                if most_chunks == 0:
                    return
        if response.status_code == 429:
            await asyncio.sleep(COME_BACK_S)

    def _talk(self, words: int) -> Messages:
        return [_turn("user", f"{next(self._numbers)} " + "word " * words)]


@dataclass(frozen=True)
class Seen:
    """What all callers have seen."""

    first_text_s: list[float]
    middling_first_text_s: list[float]
    statuses: list[int]


async def load(url: str, keys: tuple[str, str], stage_s: float) -> Seen:
    """Put the service under load from two tenants, the second of them a nuisance."""
    callers, nuisance = (Callers(url, key) for key in keys)
    async with aclosing(callers), aclosing(nuisance):
        async with _beside(
            (1.5, nuisance.leave_early),
            (2.0, nuisance.talk_too_long),
            (1.0, nuisance.ask_too_much),
            (1.0, nuisance.write_nonsense),
        ):
            await _stages(callers, stage_s)
            before = len(callers.first_text_s)
            await _ever_more(callers)
        return Seen(
            callers.first_text_s + nuisance.first_text_s,
            callers.first_text_s[before:],
            callers.statuses + nuisance.statuses,
        )


async def _stages(callers: Callers, seconds: float) -> None:
    for _ in range(3):
        await callers.ask_the_same()
    await _crowd(3, seconds, lambda: callers.ask(words=10, tokens=300))
    await _crowd(1, seconds, lambda: callers.ask(words=6000, tokens=1))
    await _crowd(2, seconds, lambda: callers.ask_again(words=2000, tokens=150))
    await _crowd(24, 1.5 * seconds, lambda: callers.ask(words=30, tokens=60))
    for _ in range(5):
        await asyncio.gather(*(callers.stop_short() for _ in range(8)))
    await _crowd(8, seconds, lambda: callers.ask(words=1200, tokens=1000))
    await asyncio.sleep(seconds / 2)


async def _ever_more(callers: Callers) -> None:
    """Times to first token without gaps between them, and long beside a caller's own milliseconds.

    Stages that differ leave gaps, and in a gap a median can be anything.
    """
    left = random.Random(0).choices(range(270, 930), k=600)

    async def one(after_s: float) -> None:
        await asyncio.sleep(after_s)
        while left:
            await callers.ask(words=left.pop(), tokens=2)

    await asyncio.gather(*(one(after_s=number / 8) for number in range(30)))


async def _crowd(size: int, seconds: float, visit: Callable[[], Awaitable[None]]) -> None:
    """So many callers at once, each asking again as soon as it has its answer."""
    until = time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < until:
            await visit()

    await asyncio.gather(*(one() for _ in range(size)))


@asynccontextmanager
async def _beside(*habits: tuple[float, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Callers who come back after a pause, until what they accompany is over."""
    over = asyncio.Event()

    async def one(pause_s: float, visit: Callable[[], Awaitable[None]]) -> None:
        while not over.is_set():
            await visit()
            await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as group:
        for pause_s, visit in habits:
            group.create_task(one(pause_s, visit))
        yield
        over.set()


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
