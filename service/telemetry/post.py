"""The way to the program that sends spans; starts it again should it end.

Encoding and sending take longer than everything else that is told of a request. In a process of its own
that costs the one that streams answers nothing, and a collector that hangs is no business of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process

import orjson

from service.errors import StartError

log = logging.getLogger(__name__)

SENDER = "service.telemetry.sender"
READY_S = 30.0  # its libraries take a second to load, and many on a machine that is busy
AGAIN_S = 5.0
MOST_BYTES = 2**24  # that may wait to be read by it


class Ledger:
    """What became of the spans."""

    def __init__(self) -> None:
        self.handed = 0
        self.exported = 0
        self.failed = 0
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Spans that wait for the collector, or are on their way to it."""
        return self.handed - self.exported - self.failed


class Post:
    """One program that sends. `capacity`: spans that may be on their way."""

    def __init__(self, version: str, capacity: int) -> None:
        self.ledger = Ledger()
        self._version = version
        self._capacity = capacity
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._parcels: list[bytes] = []  # of this turn of the loop

    async def start(self) -> None:
        """Start the program; returns when it is ready.

        Raises:
            StartError: it cannot follow the OTEL_… variables, or does not start.
        """
        command = (sys.executable, "-m", SENDER, self._version)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        try:
            async with asyncio.timeout(READY_S):
                fault = await _first_word(process)
        except TimeoutError:
            fault = f"the program that sends traces was not ready within {READY_S:.0f} s"
        except BaseException:
            await _ended(process, 0)
            raise
        if fault is not None:
            await _ended(process, 0)
            raise StartError(fault)
        self._process = process
        self._listener = asyncio.create_task(self._listen(process))

    def send(self, tree: bytes, spans: int) -> bool:
        """Send a tree of so many spans, a line of JSON; whether it is on its way.

        Never waits: what does not fit is dropped, as a whole, since half a tree would mislead.
        """
        pipe = None if self._process is None else self._process.stdin
        if (
            pipe is None
            or self.ledger.pending + spans > self._capacity
            or pipe.transport.get_write_buffer_size() > MOST_BYTES
        ):
            self.ledger.dropped += spans
            return False
        self.ledger.handed += spans
        if not self._parcels:
            asyncio.get_running_loop().call_soon(self._post)
        self._parcels.append(tree)
        return True

    def _post(self) -> None:
        """Trees that come together go together: each write wakes the program."""
        parcels, self._parcels = b"".join(self._parcels), []
        if parcels and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(parcels)

    async def aclose(self, limit_s: float) -> None:
        """Let it send what it has, for as long as the limit allows."""
        self._post()
        process, self._process = self._process, None
        if process is not None:
            await _ended(process, limit_s)
        elif self._listener is not None:  # which is about to start another
            self._listener.cancel()
        if self._listener is not None:
            await asyncio.wait({self._listener})

    async def _listen(self, process: Process) -> None:
        """Keep the books, until the program ends; then start another."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            word = orjson.loads(line)
            self.ledger.exported += word.get("exported", 0)
            self.ledger.failed += word.get("failed", 0)
            if "said" in word:
                log.warning("traces do not get through; answers are not affected: %s", word["said"])
        self.ledger.failed = self.ledger.handed - self.ledger.exported
        if self._process is process:
            self._process = None
            log.warning("the program that sends traces has ended and is started again")
            await _ended(process, 0)
            await self._start_again()

    async def _start_again(self) -> None:
        while self._process is None:
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(StartError, OSError):
                await self.start()


async def _first_word(process: Process) -> str | None:
    """Why the program cannot be used; None when it is ready."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        return "the program that sends traces does not start; what it printed stands above"
    fault: str | None = orjson.loads(line)["fault"]
    return fault


async def _ended(process: Process, limit_s: float) -> None:
    """Nothing more is sent to it, and after the limit it is no more."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
