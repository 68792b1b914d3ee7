"""The client, in a process of its own: `python -m bench.client` reads a job and prints what it measured.

It does as little as it can while the clock runs: bytes are kept as they come and looked at afterwards,
except for the first text and for the end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import uvloop

from bench.meter import Meter
from bench.outcome import Outcome, Timing, outcome
from bench.shapes import Shape, messages
from bench.stream import FIRST_TEXT, BadStream, check, ended

SETTLE_S = 0.3  # after the last byte a server still has things to put away, and they are its cost as well
KEY = "tp-bench"  # where keys are asked for
STATUS_OK = b"HTTP/1.1 200 "


@dataclass(frozen=True, slots=True)
class Job:
    """A shape to run against a server, and the process whose CPU time counts."""

    shape: Shape
    turn: int
    port: int
    pid: int
    model: str

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `json.dumps(asdict(job))` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "shape": Shape(**fields["shape"])})


class Connection(asyncio.Protocol):
    """One connection: one request at a time, and the bytes that come back."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.timing = Timing(0.0)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it

    async def ask(self, request: bytes) -> None:
        """Send a request; returns when its answer has ended."""
        self.parts = []
        self._over = asyncio.get_running_loop().create_future()
        self.timing = Timing(perf_counter())
        self._transport.write(request)
        await self._over

    def close(self) -> None:
        """Drop the connection, whatever is still on its way."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        if self.timing.first is None:
            self._look_for_text()
        if ended(self.parts):
            self.timing.ended = perf_counter()
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        came = b"".join(self.parts)
        self._finish(BadStream(f"the server closed the connection after {came[-300:]!r}"))

    def _look_for_text(self) -> None:
        now = perf_counter()
        came = b"".join(self.parts)
        if not STATUS_OK.startswith(came[: len(STATUS_OK)]):
            self._finish(BadStream(f"the server answered {came[:600]!r}"))
        elif FIRST_TEXT.search(came):
            self.timing.first = now

    def _finish(self, error: BadStream | None) -> None:
        if not self._over.done():
            self._over.set_exception(error) if error else self._over.set_result(None)


async def run(job: Job) -> Outcome:
    """Every request of the job, `streams` at a time, each on a connection opened before the clock starts.

    Raises:
        BadStream: an answer was refused, broken, incomplete or of another length.
    """
    loop = asyncio.get_running_loop()
    requests = [
        request(job.port, job.model, messages(job.shape, job.turn, index), job.shape.tokens)
        for index in range(job.shape.requests)
    ]
    opened = [
        (await loop.create_connection(Connection, "127.0.0.1", job.port))[1] for _ in range(job.shape.streams)
    ]
    waiting = iter(requests)
    meter, waited_before_s = Meter(job.pid), _waited_s()
    try:
        done = await asyncio.gather(*(_work(connection, waiting) for connection in opened))
        await asyncio.sleep(SETTLE_S)
        used, waited_s = meter.stop(), _waited_s() - waited_before_s
    finally:
        for connection in opened:
            connection.close()
    for _, raw in (answer for answers in done for answer in answers):
        check(raw, job.shape.tokens)
    timings = [timing for answers in done for timing, _ in answers]
    return outcome(timings, job.shape.tokens, used, client_waited_s=waited_s)


async def _work(connection: Connection, waiting: Iterator[bytes]) -> list[tuple[Timing, bytes]]:
    answers = []
    for request in waiting:
        await connection.ask(request)
        answers.append((connection.timing, b"".join(connection.parts)))
    return answers


def request(
    port: int, model: str, messages: Sequence[Mapping[str, str]], tokens: int, **fields: Any
) -> bytes:
    """One HTTP request for a stream of `tokens` tokens, exactly unless other `fields` of its body say so."""
    asked = {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    body = json.dumps(asked).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"host: 127.0.0.1:{port}\r\n"
        "content-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def come_first() -> None:
    """Where it is allowed, never wait for a CPU.

    An engine's processes poll for each other, so no core is ever idle, and a client that waits behind them
    for its turn sees a text half a second after it has come.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _waited_s() -> float:
    """How long this process has been kept from running, so far."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def main() -> int:
    """Entry point of the client's process."""
    job = Job.from_json(sys.stdin.read())
    gc.disable()
    come_first()
    try:
        print(json.dumps(asdict(uvloop.run(run(job)))))
    except (BadStream, OSError) as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
