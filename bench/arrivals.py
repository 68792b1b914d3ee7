"""Callers who do not wait for each other: `python -m bench.arrivals` reads a `Crowd`, prints what each saw.

Requests come as a Poisson process on a schedule that is fixed before the first of them, and each is timed
from the instant it was meant to be sent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
from dataclasses import asdict, dataclass
from time import perf_counter

import uvloop

from bench.client import come_first, request
from bench.shapes import Shape, messages
from bench.stream import FIRST_TEXT, BadStream, check, ended

PROMPT_WORDS = 16


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who comes, and where to."""

    rate: float  # requests a second, on average
    seconds: float  # of arrivals
    tokens: int  # of each answer
    patience_s: float  # after which a caller hangs up
    seed: int
    port: int
    model: str

    @classmethod
    def from_json(cls, text: str) -> Crowd:
        """The crowd that `json.dumps(asdict(crowd))` wrote."""
        return cls(**json.loads(text))

    def schedule(self) -> list[float]:
        """When each request is sent, in seconds from the start."""
        draw = random.Random(self.seed)
        times, now = [], draw.expovariate(self.rate)
        while now < self.seconds:
            times.append(now)
            now += draw.expovariate(self.rate)
        return times


@dataclass(frozen=True, slots=True)
class Call:
    """One request; times in seconds from the instant it was meant for."""

    late_s: float  # by which it was sent too late: a fault of the measurement
    status: int  # 0 where there was none
    first_s: float | None  # its first text
    ended_s: float
    whole: bool  # a complete answer of the right length
    retry_after: bool  # whether a refusal says when to come back


class Caller(asyncio.Protocol):
    """One connection for one request."""

    def __init__(self, meant: float) -> None:
        self.meant = meant
        self.raw = bytearray()
        self.first: float | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.raw += data
        if self.first is None and FIRST_TEXT.search(self.raw):
            self.first = perf_counter() - self.meant
        if ended([bytes(self.raw[-16:])]) or self._refused_whole():
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _refused_whole(self) -> bool:
        head, found, body = bytes(self.raw).partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return bool(found and length) and len(body) >= int(length[0].partition(b":")[2])

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def call(crowd: Crowd, meant: float, index: int) -> Call:
    """Send one request at its time, and read until it is over or patience ends."""
    shape = Shape("crowd", 1, 1, PROMPT_WORDS, crowd.tokens)
    data = request(crowd.port, crowd.model, messages(shape, crowd.seed, index), crowd.tokens)
    await asyncio.sleep(max(0.0, meant - perf_counter()))
    late_s = perf_counter() - meant
    loop = asyncio.get_running_loop()
    transport, caller = await loop.create_connection(lambda: Caller(meant), "127.0.0.1", crowd.port)
    transport.write(data)
    await asyncio.wait({caller.over}, timeout=crowd.patience_s)
    ended_s = perf_counter() - meant
    transport.abort()
    return _seen(caller, crowd, late_s, ended_s)


def _seen(caller: Caller, crowd: Crowd, late_s: float, ended_s: float) -> Call:
    raw = bytes(caller.raw)
    try:
        check(raw, crowd.tokens)
        whole = True
    except (BadStream, IndexError):
        whole = False
    head = raw.partition(b"\r\n\r\n")[0]
    status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
    again = b"\r\nretry-after:" in head.lower()
    return Call(late_s, status, caller.first, ended_s, whole, again)


async def run(crowd: Crowd) -> list[Call]:
    """All of them, in the order they were meant to come."""
    began = perf_counter() + 0.2
    calls = [call(crowd, began + at, index) for index, at in enumerate(crowd.schedule())]
    return list(await asyncio.gather(*calls))


def main() -> int:
    """Entry point of the callers' process."""
    crowd = Crowd.from_json(sys.stdin.read())
    gc.disable()
    come_first()
    print(json.dumps([asdict(seen) for seen in uvloop.run(run(crowd))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
