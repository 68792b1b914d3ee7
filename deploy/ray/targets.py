"""Tells Prometheus where the replicas' metrics are, as its `http_sd_configs` reads it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from starlette.responses import JSONResponse

from service.admission.tenants import Tenants
from service.settings import load
from service.web.authenticate import Authenticate
from service.web.middleware import Surround

APPLICATION, DEPLOYMENT = "targets", "Targets"
TELL_S = 5.0
FORGET_S = 20.0  # after a replica was last heard of; until then a scrape fails, which is worth an alert


class Targets:
    """Replicas that are alive, by what they say themselves."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, float]] = {}
        self._tenants: Tenants | None = None  # nobody needs a key

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """A config with another `user_config` has been applied: the sign to read the tenants again."""
        if self._tenants is not None:
            self._tenants.reload()

    def hear(self, replica: str, address: str) -> None:
        """A replica says that it lives."""
        self._heard[replica] = (address, time.monotonic())

    def listed(self) -> list[dict[str, object]]:
        """Each replica is a group of its own, so that its series carry its name."""
        recent = time.monotonic() - FORGET_S
        self._heard = {name: (at, then) for name, (at, then) in self._heard.items() if then > recent}
        return [
            {"targets": [address], "labels": {"replica": replica}}
            for replica, (address, _) in self._heard.items()
        ]

    def __serve_build_asgi_app__(self) -> FastAPI:
        settings = load()
        settings.check_reach()
        app = FastAPI(title="Twophase's replicas", openapi_url=None)

        @app.get("/replicas")
        async def replicas() -> JSONResponse:
            return JSONResponse(self.listed())

        if not settings.public_metrics:
            self._tenants = Tenants(settings.tenants_file)
            app.add_middleware(Authenticate, tenants=self._tenants, public_metrics=False)
        app.add_middleware(Surround, count=lambda path, status: None)
        return app


def application(options: dict[str, str]) -> Application:
    """For `import_path` in a Serve config."""
    deployment = serve.deployment(serve.ingress()(Targets), name=DEPLOYMENT)
    return deployment.options(ray_actor_options={"num_cpus": 0}).bind()
