"""The server around the app: listens before the model is there, drains before it goes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.chat.life import Life, Stage
from service.engine.protocol import Engine
from service.errors import EngineUnavailable
from service.settings import Settings
from service.web.connection import connection_class
from service.web.tls import certificate_of

log = logging.getLogger(__name__)

CLOSING_S = 2  # for the last error events and bytes, once the drain limit has passed


class Server(uvicorn.Server):
    """uvicorn with our life: `failure` says why it ended, when it ended badly."""

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        life: Life,
        engine: Engine,
        on_drain: Callable[[], None],
        on_refused: Callable[[int], None],
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._certificate = certificate_of(settings)
        super().__init__(_config(app, settings, on_refused))
        self.failure: Exception | None = None
        self._life = life
        self._engine = engine
        self._drain_s = settings.drain_s
        self._on_drain = on_drain
        self._on_ready = on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once. Nothing is raised again at the end."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._life.drain()

    def renew_certificate(self) -> None:
        """Read the certificate again, for connections that come from now on."""
        if self._certificate is not None and self.config.loaded and self.config.ssl is not None:
            self._certificate.renew(self.config.ssl)

    async def on_tick(self, counter: int) -> bool:
        """Ends the server when the model cannot be served, so that a supervisor starts it again."""
        if self._life.stage is Stage.FAILED:
            self.failure = self._life.failure
            return True
        if self._life.stage is Stage.OPEN:
            self._announce()
        if self._life.stage in (Stage.OPEN, Stage.STANDING):  # one that stands still may die of it
            try:
                self._engine.check()
            except EngineUnavailable as exc:
                self.failure = exc
                return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers under way finish while new requests are still told why they are refused."""
        self._on_drain()
        if self.failure is None and self._life.in_flight:
            log.info("draining: %d answers under way, up to %g s", self._life.in_flight, self._drain_s)
            await self._drained()
        await super().shutdown(sockets)

    def _announce(self) -> None:
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    async def _drained(self) -> None:
        """Returns when nothing is under way. What still is at the limit is told so, and ends."""
        emptied = asyncio.ensure_future(self._life.emptied())
        limit = asyncio.get_running_loop().time() + self._drain_s
        while not (emptied.done() or self.force_exit) and asyncio.get_running_loop().time() < limit:
            await asyncio.wait({emptied}, timeout=0.1)
        if not (emptied.done() or self.force_exit):
            for task in self.server_state.tasks:
                task.cancel()
        emptied.cancel()


def _config(app: FastAPI, settings: Settings, on_refused: Callable[[int], None]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=connection_class(
            write_timeout_s=settings.write_timeout_s,
            head_timeout_s=settings.body_timeout_s,
            count=on_refused,
        ),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSING_S,
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
    )
