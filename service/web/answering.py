"""One way through every face: read the request, open the answer, choose how it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from service.admission.quotas import Visit
from service.admission.tenant import Tenant
from service.chat.answer import Answer
from service.chat.caller import Caller
from service.chat.reply import Reply
from service.chat.request import ChatRequest
from service.chat.service import Chat
from service.chat.together import Together
from service.errors import OURS, CapacityError, Draining, InternalFault, InvalidValue, ServiceError
from service.settings import Settings
from service.telemetry.observer import Observation, Observer
from service.web.body import read_json_body
from service.web.connection import RECEIVED
from service.web.face import Asked, Face
from service.web.leaving import unless_gone
from service.web.refusal import CUT_OFF
from service.web.responses import EventStream, WholeAnswer
from service.web.wire import header_names, parse_object

DEADLINE_HEADER = "X-Request-Timeout-Ms"
LONGEST_DEADLINE_MS = 24 * 60 * 60 * 1000

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class AnswerRoute(APIRoute):
    """A route whose handler is given the request as it is: FastAPI has nothing to find out for it."""

    def get_route_handler(self) -> Handler:
        return self.endpoint


class Answering:
    """Answers requests of any face."""

    def __init__(self, chat: Chat, observer: Observer, settings: Settings) -> None:
        self._chat = chat
        self._observer = observer
        self._settings = settings

    def route(self, router: APIRouter, face: Face, summary: str) -> None:
        """Answer what is posted to the face's route."""

        async def answer(request: Request) -> Response:
            return await _Opening(self._chat, self._observer, self._settings, face, request).response()

        router.add_api_route(
            face.route, answer, methods=["POST"], summary=summary, route_class_override=AnswerRoute
        )


class _Opening:
    """One request, until its response holds the answer."""

    def __init__(
        self, chat: Chat, observer: Observer, settings: Settings, face: Face, request: Request
    ) -> None:
        self._chat = chat
        self._observer = observer
        self._settings = settings
        self._face = face
        self._request = request
        self._tenant: Tenant = request.state.tenant

    async def response(self) -> Response:
        """The answer's response, or a refusal raised.

        Raises:
            ServiceError.
        """
        received = self._request.scope.get("extensions", {}).get(RECEIVED, {})
        observation = self._observe(received.get("at_s"))
        try:
            visit = await self._chat.enter(self._tenant)
            try:
                return await self._opened(observation, visit)
            except asyncio.CancelledError:  # the drain limit has passed
                visit.close(ours=True)
                raise Draining(CUT_OFF) from None
            except BaseException as exc:
                visit.close(ours=isinstance(exc, OURS))
                raise
        except BaseException as exc:
            _refused(observation, exc)
            observation.close()
            if isinstance(exc, CapacityError):
                exc.standing = await self._chat.standing(self._tenant)
            raise

    async def _opened(self, observation: Observation, visit: Visit) -> Response:
        """The response, which holds the visit from then on; a refusal closes it."""
        record = observation.record
        raw = await read_json_body(
            self._request,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        record.read_s = time.monotonic()
        asked = self._face.read(parse_object(raw), self._tenant)
        record.parsed_s = time.monotonic()
        caller = Caller(self._tenant, _deadline_s(self._request, record.received_s))
        try:
            reply = await unless_gone(self._open(asked, caller, observation, visit), self._request.receive)
        except ServiceError as exc:
            asked.in_their_words(exc)
            raise
        return self._leaving(asked, reply)

    async def _open(self, asked: Asked, caller: Caller, observation: Observation, visit: Visit) -> Reply:
        first, *more = asked.requests
        answer = await self._chat.open(first, caller, observation, visit)
        if not more:
            return answer
        together, observations = Together(answer, streamed=asked.streamed), [observation]
        try:
            for request in more:
                observations.append(self._observe())
                together.add(await self._one_more(request, caller, *observations[-2:]))
        except BaseException as exc:  # one of the prompts is refused, and so all are
            for each in observations:
                _refused(each, exc)
            together.close()
            observations[-1].close()
            raise
        return together

    async def _one_more(
        self, request: ChatRequest, caller: Caller, before: Observation, observation: Observation
    ) -> Answer:
        """Another prompt of the same request: in quotas, metrics and traces a request of its own."""
        observation.record.read_s, observation.record.parsed_s = before.record.read_s, time.monotonic()
        visit = await self._chat.enter(self._tenant)
        try:
            return await self._chat.open(request, caller, observation, visit)
        except BaseException as exc:
            visit.close(ours=isinstance(exc, OURS))
            raise

    def _observe(self, received_s: float | None = None) -> Observation:
        request = self._request
        observation = self._observer.open(
            request.state.request_id,
            request.scope["headers"],
            route=self._face.route,
            response_id=self._face.new_id(),
            model=self._chat.models.base,
            client=None if request.client is None else request.client.host,
            received_s=received_s,
        )
        observation.record.tenant = self._tenant.name
        return observation

    def _leaving(self, asked: Asked, reply: Reply) -> Response:
        headers = reply.headers
        if names := header_names(asked.ignored):
            headers["x-ignored-params"] = names
        if asked.streamed:
            return EventStream(reply, asked.encoder(reply), headers, keepalive_s=self._settings.keepalive_s)
        return WholeAnswer(reply, asked.whole, headers)


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
    """No answer is given: note why."""
    if isinstance(exc, ClientDisconnect | asyncio.CancelledError):
        observation.record.client_left = True
    else:
        observation.failed(exc)
        observation.record.status = exc.status if isinstance(exc, ServiceError) else InternalFault.status
