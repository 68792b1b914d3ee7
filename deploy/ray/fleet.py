"""One replica: the service's own app over one engine, as Serve runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.util import get_node_ip_address

from deploy.ray.metrics import MetricsPort
from deploy.ray.targets import APPLICATION, DEPLOYMENT, TELL_S
from service.engine.model import model_to_load
from service.errors import EngineUnavailable
from service.settings import load
from service.telemetry.log import log_to_stderr

log = logging.getLogger(__name__)


class Replica:
    """Serve makes it, asks it for the app, looks after it, and lets it go when its requests are over."""

    def __init__(self, metrics_port: int) -> None:
        """`metrics_port` is that of the first replica on a node; the others take the next ones."""
        settings = load()
        settings.check_reach()
        log_to_stderr(settings.log_format, settings.log_level)
        model = model_to_load(settings, log.info)
        from service.app import assemble  # only here: whoever deploys does without vLLM

        self._parts = assemble(settings, model)
        self._metrics = MetricsPort(self._parts.app, settings.host, metrics_port)
        wild = settings.host != "localhost" and ip_address(settings.host).is_unspecified
        self._address = f"{get_node_ip_address() if wild else settings.host}:{self._metrics.port}"
        self._name = serve.get_replica_context().replica_tag
        self._targets = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
        self._telling: asyncio.Task[None] | None = None
        self._told_s = -TELL_S

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._parts.app

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """A config with another `user_config` has been applied: the sign to read the tenants again."""
        self._parts.read_tenants_again()

    async def check_health(self) -> None:
        """Raises while the engine has not started or does not move; where it has died, the replica ends.

        Serve asks before it sends the first request, then once a period, and gives up after three bad
        answers. A dead engine does not come back, and its replica would meanwhile draw requests, having
        nothing to do.
        """
        await self._parts.life.begun()
        try:
            self._parts.engine.check()
        except EngineUnavailable:
            log.error("the engine has died, and this replica ends with it")
            os._exit(1)
        self._parts.life.check()
        self._tell()

    def _tell(self) -> None:
        """Say to `Targets` now and then that this replica lives; nobody waits for its answer."""
        over = self._telling is None or self._telling.done()
        if over and time.monotonic() >= self._told_s + TELL_S:
            self._told_s = time.monotonic()
            self._telling = asyncio.create_task(self._told())

    async def _told(self) -> None:
        try:
            await self._targets.hear.remote(self._name, self._address)
        except Exception as exc:
            log.warning("Prometheus does not hear of this replica: %s", exc)

    async def __del__(self) -> None:
        """Serve calls it when the requests are over and the app's lifespan has ended."""
        await self._metrics.aclose()
        self._parts.renderer.close()


def application(options: dict[str, int]) -> Application:
    """For `import_path` in a Serve config, with the replica's options in `args`."""
    return serve.deployment(serve.ingress()(Replica), name="Replica").bind(**options)
