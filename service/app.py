"""Builds the parts and wires them; nothing else."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import uvloop
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.routing import Route

from service import __version__
from service.admission.admission import Admission, Terms
from service.admission.counts import Counts
from service.admission.quotas import Quotas
from service.admission.tenants import Tenants
from service.chat.life import Life
from service.chat.models import Models
from service.chat.service import Chat
from service.chat.watch import Watch
from service.engine.protocol import Engine
from service.engine.vllm import VllmEngine, parser_for
from service.errors import StartError
from service.prompt.memory import PromptMemory
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.telemetry.doorbook import Doorbook
from service.telemetry.metrics import Metrics
from service.telemetry.observer import Observer
from service.telemetry.traces import traces_from_environment
from service.web.adapters import adapter_routes
from service.web.answering import Answering
from service.web.authenticate import Authenticate
from service.web.cors import Cors
from service.web.counting import counting_routes
from service.web.faces.routes import face_routes
from service.web.middleware import Surround
from service.web.openapi import openapi
from service.web.playground import playground_routes
from service.web.probes import Gauges, probes
from service.web.refusal import handlers
from service.web.routes import chat_routes
from service.web.server import Server

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the app is made of, and what a server needs to know beside it."""

    app: FastAPI
    engine: Engine
    renderer: Renderer
    life: Life
    chat: Chat
    tenants: Tenants
    admission: Admission
    observer: Observer
    doorbook: Doorbook

    def read_tenants_again(self) -> None:
        """Take the tenants file as it is now, where it can be used."""
        self.tenants.reload()
        self.observer.metrics.name_tenants(self.tenants.names)


def build(settings: Settings, engine: Engine, renderer: Renderer) -> Parts:
    """The ASGI application and its parts. It answers at once, with `not_ready` until the engine has started.

    Raises:
        StartError: the tenants file, a LoRA adapter or the tracing variables cannot be used.
    """
    life = Life()
    tenants = Tenants(settings.tenants_file)
    quotas = Quotas(Counts(settings.quota_store.get_secret_value()))
    admission = Admission(_terms(settings))
    observer = _observer(settings, tenants, admission)
    memory = PromptMemory(settings.prompt_memory_bytes)
    models = Models(engine, settings.model_name, settings.lora, settings.lora_folder)
    chat = Chat(settings, engine, renderer, life, quotas, admission, memory, models)
    watch = Watch(engine, life, settings.hang_s, chat.end_all)
    app = _application(_lifespan(life, engine, chat, watch, quotas, observer))
    metrics, answering = observer.metrics, Answering(chat, observer, settings)
    gauges = Gauges(life, engine, renderer, admission, observer, memory, settings.model_name)
    for router in (
        chat_routes(chat, answering, settings),
        face_routes(chat, answering, settings),
        counting_routes(chat, engine, renderer, settings),
        adapter_routes(chat, settings),
        probes(gauges),
        playground_routes(),
    ):
        app.include_router(router)
    app.openapi_schema = openapi(app, needs_keys=tenants.need_keys)
    doorbook = metrics.doorbook([route.path for route in app.routes if isinstance(route, Route)])
    _surround(app, settings, tenants, doorbook)
    return Parts(app, engine, renderer, life, chat, tenants, admission, observer, doorbook)


def _lifespan(
    life: Life, engine: Engine, chat: Chat, watch: Watch, quotas: Quotas, observer: Observer
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What starts and ends with the server, in this order."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        observer.start()
        living = asyncio.create_task(life.start(observer.traces.start, engine.start, chat.start, watch.start))
        yield
        chat.drain()
        if not living.done():
            engine.cancel_start()
        await asyncio.wait({living})  # an engine half started would leave processes behind
        watch.stop()
        await engine.aclose()
        await quotas.aclose()
        await observer.aclose()

    return lifespan


def _surround(app: FastAPI, settings: Settings, tenants: Tenants, doorbook: Doorbook) -> None:
    """What every request passes through. The last one added is the outermost."""
    app.add_middleware(Authenticate, tenants=tenants, public_metrics=settings.public_metrics)
    if settings.cors_origins:
        app.add_middleware(Cors, origins=settings.cors_origins)
    app.add_middleware(Surround, count=doorbook.observe)


def _application(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    return FastAPI(
        title="Twophase",
        version=__version__,
        summary="Chat from a language model, with the time of every answer in plain sight.",
        lifespan=lifespan,
        exception_handlers=dict(handlers()),
        redirect_slashes=False,
        docs_url=None,  # both pages load scripts from other hosts
        redoc_url=None,
    )


def _terms(settings: Settings) -> Terms:
    return Terms(
        max_waiting=settings.max_waiting,
        max_wait_s=settings.max_wait_s,
        slo_ttft_s=settings.slo_ttft_ms / 1000,
        shadow=settings.deadline_mode == "shadow",
    )


def _observer(settings: Settings, tenants: Tenants, admission: Admission) -> Observer:
    traces = traces_from_environment(__version__)
    metrics = Metrics(
        CollectorRegistry(),
        slo_ttft_s=settings.slo_ttft_ms / 1000,
        tenants=tenants.names,
        ledger=traces.ledger,
        shadow_refusals=admission.refused_in_shadow,
        engine_registries=[REGISTRY],
    )
    return Observer(metrics, traces, trace_content=settings.trace_content)


def _renderer(settings: Settings, model: str) -> Renderer:
    """The renderer reads the same tokenizer as the engine."""
    args = settings.engine_args
    renderer = Renderer.load(
        model,
        chat_template=settings.chat_template,
        template_kwargs=settings.template_kwargs,
        trust_remote_code=bool(args.get("trust_remote_code")),
        revision=args.get("tokenizer_revision") or args.get("revision"),
        tokenizer=args.get("tokenizer"),
        cache_bytes=settings.piece_cache_bytes,
        control_tokens=settings.control_tokens,
    )
    if not renderer.is_piecewise:
        log.warning("this model's prompts are tokenized whole each time: long conversations cost more")
    return renderer


def assemble(settings: Settings, model: str) -> Parts:
    """The app over a real engine for `model`, a folder or a Hugging Face id. Its server closes the renderer.

    Raises:
        StartError: something that the settings name cannot be used.
    """
    renderer = _renderer(settings, model)
    engine = VllmEngine(
        model,
        {"served_model_name": [settings.model_name], **settings.engine_args},
        settings.max_model_len,
        reasoning_parser=settings.reasoning_parser,
        tool_parser=settings.tool_parser or parser_for(renderer.template_text),
        adapters=settings.adapter_places,
    )
    return build(settings, engine, renderer)


async def serve(server: Server, parts: Parts, address: socket.socket) -> None:
    """Serve until the server ends; whatever is under way then is told of."""
    try:
        await server.serve(sockets=[address])
    finally:
        # A second signal ends without the lifespan's end, and what runs is cancelled only after this.
        parts.observer.tell_at_once()


def run(settings: Settings, model: str, address: socket.socket, say: Callable[[str], None]) -> None:
    """Serve `model`, a folder or a Hugging Face id, until a signal comes; `say` tells how it goes.

    Raises:
        StartError: the model could not be served, or the engine has died.
    """
    parts = assemble(settings, model)

    def announce() -> None:
        host, port = address.getsockname()[:2]
        window = parts.engine.facts.context_window
        where = f"{'https' if settings.tls_cert_file else 'http'}://{host}:{port}"
        say(f"ready: {settings.model_name} at {where} (window {window} tokens; Ctrl-C stops it)")

    server = Server(
        parts.app, settings, parts.life, parts.engine, parts.chat.drain, parts.doorbook.refused, announce
    )

    def read_again(*_: object) -> None:
        parts.read_tenants_again()
        server.renew_certificate()

    signal.signal(signal.SIGHUP, read_again)
    say("starting the engine; this takes about half a minute")
    try:
        uvloop.run(serve(server, parts, address))
    finally:
        parts.renderer.close()
    if server.failure is not None:
        raise StartError(str(server.failure)) from server.failure
