"""Talks to the program that tries grammars; starts it again should it end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import orjson

from service.errors import EngineUnavailable, Overloaded

AT_ONCE = 2  # trials, of different tenants: one with many leaves room for the others
TRIAL = "service.engine.grammar.trial"
LINE_BYTES = 2**20
NOT_THERE = "Schemas and grammars cannot be checked just now; try again in a moment."


class Unfit(Exception):
    """The grammar cannot be used; the text says why, and is empty where a limit ended the trial."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one trial may use."""

    cpu_s: float = 2.0
    memory_bytes: int = 2**30
    wait_s: float = 15.0  # for a place and the verdict together, on a machine that is busy


class Workshop:
    """One program for trials. `tokens` gives the model's tokens as xgrammar writes them."""

    def __init__(self, tokens: Callable[[], Awaitable[str]], limits: Limits) -> None:
        self._tokens = tokens
        self._limits = limits
        self._numbers = itertools.count()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of tenants with a trial
        self._opening = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the program unless it runs; returns when it is ready."""
        async with self._opening:
            if self._listener is not None and not self._listener.done():
                return
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", TRIAL), stdin=PIPE, stdout=PIPE, limit=LINE_BYTES
            )
            try:
                await self._set_up(process)
            except BaseException:
                await self.aclose()
                raise
            self._listener = asyncio.create_task(self._listen(process))

    async def _set_up(self, process: Process) -> None:
        limits = {"cpu_s": self._limits.cpu_s, "memory_bytes": self._limits.memory_bytes}
        _send(process, {"tokenizer": await self._tokens(), **limits})
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise EngineUnavailable(NOT_THERE)

    async def fits(self, kind: str, spec: str, tenant: str) -> None:
        """Try a grammar; a tenant's are tried one after the other.

        Raises:
            Unfit: it does not compile, or not within the limits.
            Overloaded: too many others are being tried. EngineUnavailable: the program has ended.
        """
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(self._limits.wait_s), turn, self._places:
                await self.open()
                fault = await self._verdict(kind, spec)
        except TimeoutError:
            raise Overloaded("Too many new schemas are being checked; try again later.") from None
        if fault is not None:
            raise Unfit(fault)

    async def aclose(self) -> None:
        """End the program; what it tries ends with it or at its limit."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._listener is not None:
            await self._listener

    async def _verdict(self, kind: str, spec: str) -> str | None:
        process = self._process
        assert process is not None
        number = next(self._numbers)
        verdict = self._waiting[number] = asyncio.get_running_loop().create_future()
        _send(process, {"id": number, "kind": kind, "spec": spec})
        try:
            fault: str | None = await verdict
            return fault
        except asyncio.CancelledError:  # its place is free at once, so its work has to end at once too
            _send(process, {"id": number, "kind": "left"})
            raise
        finally:
            del self._waiting[number]

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = orjson.loads(line)
            if (verdict := self._waiting.get(said["id"])) is not None and not verdict.done():
                verdict.set_result(said["fault"])
        for verdict in self._waiting.values():
            if not verdict.done():
                verdict.set_exception(EngineUnavailable(NOT_THERE))


def _send(process: Process, message: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(message) + b"\n")
