"""A server with written delays, which notes what it really did: the load client is held to that."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%bconnection: close\r\n\r\n"
EVENTS = b"text/event-stream"
JSON = b"application/json"


@dataclass
class Seen:
    """One request: its body and headers, when it was read and when each token was written (monotonic)."""

    body: dict[str, object]
    headers: dict[str, str]
    read_s: float
    wrote_s: list[float] = field(default_factory=list)

    @property
    def first_ms(self) -> float:
        """From the request to its first token."""
        return (self.wrote_s[0] - self.read_s) * 1e3

    @property
    def gaps_ms(self) -> list[float]:
        """Between tokens."""
        pairs = zip(self.wrote_s, self.wrote_s[1:], strict=False)
        return [(after - before) * 1e3 for before, after in pairs]


class Reply:
    """Writes one response, as a script wants it."""

    def __init__(self, writer: asyncio.StreamWriter, seen: Seen) -> None:
        self._writer = writer
        self.seen = seen

    async def head(self, status: bytes = b"200 OK", kind: bytes = EVENTS, more: bytes = b"") -> None:
        self._writer.write(HEAD % (status, kind, more))
        await self._writer.drain()

    async def raw(self, text: bytes) -> None:
        self._writer.write(text)
        await self._writer.drain()

    async def event(self, **fields: object) -> None:
        await self.raw(b"data: " + json.dumps(fields).encode() + b"\n\n")

    async def token(self, text: str = "word ") -> None:
        self.seen.wrote_s.append(time.monotonic())
        await self.event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])

    async def end(self, tokens: int | None = None) -> None:
        await self.event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        count = len(self.seen.wrote_s) if tokens is None else tokens
        await self.event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": count})
        await self.raw(b"data: [DONE]\n\n")


Script = Callable[[Reply], Awaitable[None]]


class ScriptedServer:
    """Plays one script for every request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if ": " in line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            seen = Seen(json.loads(body or b"{}"), headers, time.monotonic())
            self.seen.append(seen)
            await self.script(Reply(writer, seen))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    """The server in a thread of its own, for as long as the block lasts."""
    server, started = ScriptedServer(script), threading.Event()
    stop: list[Callable[[], None]] = []

    async def run() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))  # type: ignore[arg-type]
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=512)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await stopped.wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="scripted server")
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        stop[0]()
        thread.join(10)
