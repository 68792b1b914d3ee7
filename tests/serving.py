"""A real uvicorn with our app on a real socket, in a thread, for tests about streams and time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvloop

from service import app
from service.app import Parts, build
from service.chat.life import Life
from service.engine.protocol import Engine
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.web.listen import listening_socket
from service.web.server import Server


@dataclass
class Running:
    """A server that runs, and what a test may want to look at from outside its loop."""

    url: str
    port: int
    server: Server
    parts: Parts
    renderer: Renderer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @property
    def life(self) -> Life:
        """The service's stage, and how many answers are under way."""
        return self.parts.life

    def client(self, **options: object) -> httpx.Client:
        """A new client of this server."""
        return httpx.Client(base_url=self.url, timeout=30, **options)  # type: ignore[arg-type]


@contextmanager
def running(
    settings: Settings, engine: Engine, renderer: Renderer, *, wait: bool = True
) -> Iterator[Running]:
    """Serve until the block ends; with `wait`, only once the service is ready."""
    address = listening_socket("127.0.0.1", 0)
    ready = threading.Event()
    started = threading.Event()
    box: list[Running] = []

    async def serve() -> None:
        parts = build(settings, engine, renderer)
        server = Server(
            parts.app, settings, parts.life, engine, parts.chat.drain, parts.doorbook.refused, ready.set
        )
        loop = asyncio.get_running_loop()
        port = address.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        box.append(Running(url, port, server, parts, renderer, loop, threading.current_thread()))
        started.set()
        await app.serve(server, parts, address)

    thread = threading.Thread(target=lambda: uvloop.run(serve()), name="server")
    thread.start()
    started.wait(10)
    try:
        if wait:
            assert ready.wait(180), "the service did not become ready"
        yield box[0]
    finally:
        box[0].server.should_exit = True
        thread.join(60)


def until(true: Callable[[], object], within_s: float = 10) -> None:
    """Wait until `true()` holds."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)
