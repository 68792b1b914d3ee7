"""A short load that meets every branch: each stage makes another thing scarce, and beside all of them run
callers who ask too much, leave early or write nonsense."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

CHAT = "/v1/chat/completions"
FIRST_TEXT = b'"content":"'

Messages = list[dict[str, str]]


@dataclass
class Seen:
    """What the callers have seen."""

    first_text_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


class Callers:
    """All of them, on one client. Every prompt begins with a number of its own, unless it is to be shared."""

    def __init__(self, web: httpx.AsyncClient, seen: Seen) -> None:
        self._web = web
        self._seen = seen
        self._numbers = itertools.count()

    async def ask(self, words: int, tokens: int) -> None:
        """A stream read to its end."""
        await self._stream(self._talk(words), tokens)

    async def ask_again(self, words: int, tokens: int) -> None:
        """A long beginning that is always the same, and a short end that is not."""
        system = {"role": "system", "content": "manual " * words}
        await self._stream([system, *self._talk(3)], tokens)

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
            self._seen.statuses.append(response.status_code)
            chunks, had_text = 0, False
            async for chunk in response.aiter_raw():
                if not had_text and FIRST_TEXT in chunk:
                    had_text = True
                    self._seen.first_text_s.append(time.perf_counter() - began)
                chunks += 1
                if chunks >= most_chunks:
                    return

    def _talk(self, words: int) -> Messages:
        return [_turn("user", f"{next(self._numbers)} " + "word " * words)]


async def load(url: str, stage_s: float) -> Seen:
    """Put the service under load, six stages long; returns what the callers have seen."""
    seen = Seen()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as web:
        callers = Callers(web, seen)
        async with _beside(
            (1.5, callers.leave_early),
            (2.0, callers.talk_too_long),
            (1.0, callers.ask_too_much),
            (1.0, callers.write_nonsense),
        ):
            await _crowd(3, stage_s, lambda: callers.ask(words=10, tokens=300))
            await _crowd(2, stage_s, lambda: callers.ask(words=6000, tokens=1))
            await _crowd(2, stage_s, lambda: callers.ask_again(words=2000, tokens=150))
            await _crowd(24, stage_s, lambda: callers.ask(words=30, tokens=60))
            await _crowd(8, stage_s, lambda: callers.ask(words=1200, tokens=1000))
            await asyncio.sleep(stage_s / 2)
    return seen


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
