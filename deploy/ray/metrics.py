"""A port of each replica for whoever watches it: its probes and metrics, and nothing else of the app."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import StartError
from service.web.authenticate import METRICS, PROBES
from service.web.listen import listening_socket

PORTS = 100  # tried from the first one on: replicas share a node


class MetricsPort:
    """Serves those paths of the app, in the loop that it is made in, until it is closed."""

    def __init__(self, app: ASGIApp, host: str, first_port: int) -> None:
        """Raises StartError when no port is free."""
        self._address = _free(host, first_port)
        config = uvicorn.Config(
            _only_watched(app), lifespan="off", ws="none", log_config=None, access_log=False
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._address]))

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._address.getsockname()[1])

    async def aclose(self) -> None:
        """End it; scrapes under way are finished."""
        self._server.should_exit = True
        await self._serving


def _free(host: str, first_port: int) -> socket.socket:
    for port in range(first_port, first_port + PORTS):
        with contextlib.suppress(StartError, OSError):
            address = listening_socket(host, port)
            address.listen()  # or another replica could still bind it
            return address
    last = first_port + PORTS - 1
    raise StartError(f"ports {first_port} to {last} of {host} are all taken; set metrics_port to others")


def _only_watched(app: ASGIApp) -> ASGIApp:
    nothing = PlainTextResponse("only probes and metrics\n", status_code=404)

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        there = scope["path"] == METRICS or scope["path"] in PROBES
        await (app if there else nothing)(scope, receive, send)

    return watched
