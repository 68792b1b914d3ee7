"""Callers that keep coming, each of one kind, and what became of every request; a probe runs beside them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from bench.stats import quantile

Ending = Literal["whole", "error event", "cut off", "left", "refused", "unreachable"]
PROBE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request came to."""

    kind: str
    ending: Ending
    status: int = 0
    code: str | None = None  # of an error
    retry_after: bool = False
    began_s: float = 0.0  # on the monotonic clock
    ended_s: float = 0.0


@dataclass
class Storm:
    """Runs callers in a thread of its own from `start` to `stop`, which raises what went wrong in them."""

    url: str
    kinds: Sequence[str]  # one caller for each, over and over: see `CALLERS`
    tokens: int = 64
    replies: list[Reply] = field(default_factory=list)
    alive_s: list[float] = field(default_factory=list)  # how long each /livez took
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storm")

    def start(self) -> Storm:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> Storm:
        """Let each caller finish what it has begun."""
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "callers are still waiting for an answer"
        if self.failures:
            raise self.failures[0]
        return self

    def __enter__(self) -> Storm:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.stop()

    def since(self, moment_s: float) -> list[Reply]:
        """Requests begun after a moment of the monotonic clock."""
        return [reply for reply in self.replies if reply.began_s >= moment_s]

    def across(self, moment_s: float) -> list[Reply]:
        """Requests that were under way at that moment."""
        return [reply for reply in self.replies if reply.began_s < moment_s < reply.ended_s]

    def endings(self) -> Counter[str]:
        """How many came to what."""
        return Counter(reply.ending for reply in self.replies)

    def alive_p99_ms(self) -> float:
        """Of all probes that were answered."""
        return quantile(self.alive_s, 0.99) * 1000

    def _run(self) -> None:
        try:
            asyncio.run(self._blow())
        except BaseException as exc:
            self.failures.append(exc)

    async def _blow(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits) as client:
            callers = [self._call_on(client, kind, number) for number, kind in enumerate(self.kinds)]
            await asyncio.gather(self._probe(), *callers)

    async def _call_on(self, client: httpx.AsyncClient, kind: str, seed: int) -> None:
        draw = random.Random(seed)
        while not self._over.is_set():
            began = time.monotonic()
            reply = await CALLERS[kind](client, self.tokens, draw)
            self.replies.append(_timed(reply, kind, began))
            if reply.ending in ("refused", "unreachable"):
                await asyncio.sleep(0.1)

    async def _probe(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=5) as client:
            while not self._over.is_set():
                began = time.perf_counter()
                try:
                    await client.get("/livez")
                except httpx.HTTPError:
                    await asyncio.sleep(PROBE_EVERY_S)
                    continue
                self.alive_s.append(time.perf_counter() - began)
                await asyncio.sleep(PROBE_EVERY_S)


def _timed(reply: Reply, kind: str, began_s: float) -> Reply:
    return Reply(kind, reply.ending, reply.status, reply.code, reply.retry_after, began_s, time.monotonic())


def chat_body(tokens: int, draw: random.Random, **fields: Any) -> dict[str, Any]:
    """A request for exactly so many tokens, with a prompt that no other has."""
    words = " ".join(draw.choice(("river", "stone", "cloud", "lamp", "green")) for _ in range(12))
    return {
        "messages": [{"role": "user", "content": f"{draw.random()} {words}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None) -> Reply:
    seen: list[str] = []
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                return _refused(response, await response.aread())
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(line.removeprefix("data: "))
                if leave_after is not None and len(seen) >= leave_after:
                    return Reply("", "left", 200)
    except httpx.HTTPError:
        return Reply("", "cut off" if seen else "unreachable")
    return _ending(seen)


def _ending(seen: Sequence[str]) -> Reply:
    if seen and seen[-1] == "[DONE]":
        return Reply("", "whole", 200)
    last = json.loads(seen[-1]) if seen else {}
    if "error" in last:
        return Reply("", "error event", 200, last["error"]["code"])
    return Reply("", "cut off", 200)


def _refused(response: httpx.Response, raw: bytes) -> Reply:
    code = json.loads(raw)["error"]["code"]
    return Reply("", "refused", response.status_code, code, "retry-after" in response.headers)


async def _reader(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    return await _stream(client, chat_body(tokens, draw, stream=True))


async def _leaver(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    return await _stream(client, chat_body(tokens, draw, stream=True), leave_after=draw.randrange(1, 20))


async def _whole(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    return await _post(client, chat_body(tokens, draw))


async def _several(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    return await _stream(client, chat_body(tokens // 2, draw, stream=True, n=2))


async def _too_long(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    return await _post(client, chat_body(tokens, draw, messages=[{"role": "user", "content": "far " * 9000}]))


async def _wrong(client: httpx.AsyncClient, tokens: int, draw: random.Random) -> Reply:
    field, value = draw.choice((("temperature", "hot"), ("n", -1), ("messages", []), ("stop", [1, 2])))
    return await _post(client, chat_body(tokens, draw, **{field: value}))


async def _post(client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
    try:
        response = await client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError:
        return Reply("", "unreachable")
    if response.status_code != 200:
        return _refused(response, response.content)
    return Reply("", "whole", 200)


CALLERS: dict[str, Callable[[httpx.AsyncClient, int, random.Random], Awaitable[Reply]]] = {
    "reader": _reader,
    "leaver": _leaver,
    "whole": _whole,
    "several": _several,
    "too long": _too_long,
    "wrong": _wrong,
}
