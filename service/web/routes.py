"""The chat routes: read the request, open the answer, choose how it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from service.admission.quotas import Visit
from service.admission.tenant import Tenant
from service.chat.answer import Answer
from service.chat.caller import Caller
from service.chat.request import ChatRequest
from service.chat.service import Chat
from service.errors import (
    OURS,
    CapacityError,
    InternalFault,
    InvalidValue,
    ModelNotFound,
    ServiceError,
    shown,
)
from service.settings import Settings
from service.telemetry.observer import Observation, Observer
from service.telemetry.record import RequestRecord
from service.web.body import read_json_body
from service.web.encode import ChunkEncoder
from service.web.responses import EventStream, WholeAnswer, client_gone
from service.web.wire import chat_request, header_names, parse_object

DEADLINE_HEADER = "X-Request-Timeout-Ms"
LONGEST_DEADLINE_MS = 24 * 60 * 60 * 1000


def chat_routes(chat: Chat, observer: Observer, settings: Settings) -> APIRouter:
    """`/v1/chat/completions` and `/v1/models`."""
    routes = _Routes(chat, observer, settings)
    router = APIRouter(tags=["chat"])
    router.post("/v1/chat/completions", summary="Answer a conversation, streamed or whole")(
        routes.completions
    )
    router.get("/v1/models", summary="The model served here")(routes.models)
    router.get("/v1/models/{name:path}", summary="One model by name")(routes.model)
    return router


class _Routes:
    def __init__(self, chat: Chat, observer: Observer, settings: Settings) -> None:
        self._chat = chat
        self._observer = observer
        self._settings = settings

    async def completions(self, request: Request) -> Response:
        observation = self._observer.open(
            request.state.request_id,
            request.scope["headers"],
            model=self._chat.model_name,
            client=None if request.client is None else request.client.host,
        )
        try:
            return await self._answer(request, observation)
        except BaseException as exc:
            _refused(observation, exc)
            raise

    async def models(self) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [self._chat.model_card()]})

    async def model(self, name: str) -> JSONResponse:
        served = self._chat.model_name
        if name != served:
            raise ModelNotFound(f"There is no model {shown(name)} here; this service has {served}.")
        return JSONResponse(self._chat.model_card())

    async def _answer(self, request: Request, observation: Observation) -> Response:
        tenant: Tenant = request.state.tenant
        observation.record.tenant = tenant.name
        try:
            visit = await self._chat.enter(tenant)
            return await self._opened(request, observation, visit)
        except CapacityError as exc:
            exc.standing = await self._chat.standing(tenant)
            raise

    async def _opened(self, request: Request, observation: Observation, visit: Visit) -> Response:
        """The answer, which holds the visit from then on; a refusal closes it."""
        try:
            return await self._response(request, observation, visit)
        except BaseException as exc:
            visit.close(ours=isinstance(exc, OURS))
            raise

    async def _response(self, request: Request, observation: Observation, visit: Visit) -> Response:
        wish, ignored = await self._read(request, observation.record)
        caller = Caller(request.state.tenant, _deadline_s(request, observation.record.received_s))
        answer = await _unless_gone(self._chat.open(wish, caller, observation, visit), request.receive)
        headers = {**answer.budget.headers(), **answer.quota_headers}
        if names := header_names(ignored):
            headers["x-ignored-params"] = names
        return self._event_stream(answer, wish, headers) if wish.stream else WholeAnswer(answer, headers)

    async def _read(self, request: Request, record: RequestRecord) -> tuple[ChatRequest, list[str]]:
        settings = self._settings
        raw = await read_json_body(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        record.read_s = time.monotonic()
        checked = chat_request(parse_object(raw), strict=settings.strict, max_n=settings.max_n)
        record.parsed_s = time.monotonic()
        return checked

    def _event_stream(self, answer: Answer, wish: ChatRequest, headers: dict[str, str]) -> EventStream:
        running = bool(wish.stream_options and wish.stream_options.continuous_usage_stats)
        return EventStream(
            answer,
            ChunkEncoder(answer, with_usage=wish.includes_usage, running_usage=running),
            headers,
            with_usage=wish.includes_usage,
            keepalive_s=self._settings.keepalive_s,
        )


def _deadline_s(request: Request, received_s: float) -> float | None:
    """When the caller will not wait any longer, on the monotonic clock."""
    given = request.headers.get(DEADLINE_HEADER)
    if given is None:
        return None
    if not (
        given.isascii() and given.isdigit() and len(given) < 10 and 0 < int(given) <= LONGEST_DEADLINE_MS
    ):
        raise InvalidValue(
            f"{DEADLINE_HEADER} must be a whole number of milliseconds from 1 to {LONGEST_DEADLINE_MS}.",
            param=DEADLINE_HEADER,
        )
    return received_s + int(given) / 1000


def _refused(observation: Observation, exc: BaseException) -> None:
    """No answer was opened: say why, and end the observation here."""
    if isinstance(exc, ClientDisconnect | asyncio.CancelledError):
        observation.record.client_left = True
    else:
        observation.failed(exc)
        observation.record.status = exc.status if isinstance(exc, ServiceError) else InternalFault.status
    observation.close()


async def _unless_gone(opening: Coroutine[Any, Any, Answer], receive: Receive) -> Answer:
    """The opened answer, unless the client leaves before there is one."""
    task = asyncio.ensure_future(opening)
    gone = asyncio.ensure_future(client_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
