"""Is it alive, is it ready, what is it: the routes that answer without the engine's help."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service import __version__
from service.admission.admission import Admission
from service.chat.life import Life, Stage
from service.engine.protocol import Engine
from service.prompt.memory import PromptMemory
from service.prompt.renderer import Renderer
from service.telemetry.observer import Observer

OK = {"status": "ok"}


@dataclass(frozen=True, slots=True)
class Gauges:
    """What these routes look at."""

    life: Life
    engine: Engine
    renderer: Renderer
    admission: Admission
    observer: Observer
    memory: PromptMemory
    model_name: str

    def check_alive(self) -> None:
        """Raises EngineUnavailable when the engine is known to be dead."""
        if self.life.stage is not Stage.STARTING:
            self.engine.check()

    def check_ready(self) -> None:
        """Raises what a chat request would be refused with now."""
        self.life.check()
        self.engine.check()

    def versions(self) -> dict[str, str]:
        """Versions of what runs."""
        return {"twophase": __version__, "vllm": self.engine.facts.version, "model": self.model_name}

    def read(self) -> None:
        """Bring what is not counted but looked up to the metrics."""
        metrics, admission = self.observer.metrics, self.admission
        states = metrics.states
        if self.life.stage is Stage.OPEN:
            metrics.set_build(**self.versions())
            states.show(kv_capacity_tokens=self.engine.facts.kv_capacity_tokens)
        states.show(
            ready=self.life.stage is Stage.OPEN,
            draining=self.life.stage is Stage.DRAINING,
            kv_reserved_tokens=admission.reserved_tokens,
            kv_overcommit_ratio=admission.overcommit,
            slots=admission.slots,
            slots_held=admission.held_slots,
            piece_cache_bytes=self.renderer.cache_used_bytes,
            prompt_memory_bytes=self.memory.used_bytes,
        )


def probes(gauges: Gauges) -> APIRouter:
    """`/livez`, `/readyz` with its alias `/health`, `/metrics` and `/version`."""
    router = APIRouter(tags=["operations"])

    @router.get("/livez", summary="200 while the process and its engine are alive")
    async def livez() -> JSONResponse:
        gauges.check_alive()
        return JSONResponse(OK)

    @router.get("/readyz", summary="200 when requests are taken: loaded, alive and not draining")
    async def readyz() -> JSONResponse:
        gauges.check_ready()
        return JSONResponse(OK)

    @router.get("/health", summary="The same as /readyz")
    async def health() -> JSONResponse:
        gauges.check_ready()
        return JSONResponse(OK)

    @router.get("/metrics", summary="Ours and vLLM's, as text or OpenMetrics")
    async def metrics_page(request: Request) -> Response:
        await gauges.observer.told()
        gauges.read()
        accept = request.headers.get("accept", "")
        body, media_type = await asyncio.to_thread(gauges.observer.metrics.render, accept)  # 5 to 20 ms
        return Response(body, headers={"content-type": media_type})

    @router.get("/version", summary="Versions of the service, the engine and the model")
    async def version() -> JSONResponse:
        gauges.check_ready()
        return JSONResponse(gauges.versions())

    return router
