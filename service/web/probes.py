"""Is it alive, is it ready, what is it: the routes that answer without the engine's help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service import __version__
from service.chat.life import Life, Stage
from service.engine.protocol import Engine
from service.prompt.renderer import Renderer
from service.telemetry.metrics import Metrics


def probes(life: Life, engine: Engine, renderer: Renderer, metrics: Metrics, model_name: str) -> APIRouter:
    """`/livez`, `/readyz` with its alias `/health`, `/metrics` and `/version`."""
    router = APIRouter(tags=["operations"])

    def check_alive() -> None:
        if life.stage is not Stage.STARTING:
            engine.check()

    def check_ready() -> None:
        if life.stage is not Stage.OPEN:
            life.refuse()
        engine.check()

    def answer(check: Callable[[], None]) -> JSONResponse:
        check()
        return JSONResponse({"status": "ok"})

    @router.get("/livez", summary="200 while the process and its engine are alive")
    async def livez() -> JSONResponse:
        return answer(check_alive)

    @router.get("/readyz", summary="200 when requests are taken: loaded, alive and not draining")
    async def readyz() -> JSONResponse:
        return answer(check_ready)

    @router.get("/health", summary="The same as /readyz")
    async def health() -> JSONResponse:
        return answer(check_ready)

    @router.get("/metrics", summary="Ours and vLLM's, as text or OpenMetrics")
    async def metrics_page(request: Request) -> Response:
        if life.stage is Stage.OPEN:
            metrics.set_build(twophase=__version__, vllm=engine.facts.version, model=model_name)
        metrics.set_piece_cache(renderer.cache_used_bytes)
        metrics.set_ready(life.stage is Stage.OPEN)
        metrics.set_draining(life.stage is Stage.DRAINING)
        accept = request.headers.get("accept", "")
        body, media_type = await asyncio.to_thread(metrics.render, accept)  # 5 to 20 ms
        return Response(body, headers={"content-type": media_type})

    @router.get("/version", summary="Versions of the service, the engine and the model")
    async def version() -> JSONResponse:
        check_ready()
        return JSONResponse({"twophase": __version__, "vllm": engine.facts.version, "model": model_name})

    return router
