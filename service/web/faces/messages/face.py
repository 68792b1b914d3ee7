"""The routes of Anthropic's messages."""

from __future__ import annotations

import uuid

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.admission.tenant import Tenant
from service.chat.service import Chat
from service.errors import ServiceError
from service.prompt.prompt import Prompt
from service.settings import Settings
from service.web.body import read_json_body
from service.web.face import Asked, Face
from service.web.faces.messages.encode import BlockEncoder, message_body
from service.web.faces.messages.request import CountRequest, MessagesRequest, messages_request
from service.web.shape import MESSAGES
from service.web.wire import JsonObject, header_names, parse_object


class MessagesFace(Face):
    """Conversations of content blocks."""

    route = MESSAGES

    def __init__(self, chat: Chat, settings: Settings) -> None:
        self._chat = chat
        self._settings = settings

    def new_id(self) -> str:
        return f"msg_{uuid.uuid4().hex}"

    def read(self, body: JsonObject, tenant: Tenant) -> Asked:
        request, ignored, names = messages_request(body, MessagesRequest, strict=self._settings.strict)
        return Asked([request], ignored, BlockEncoder, message_body, names.tell)

    async def count(self, request: Request) -> Response:
        """The tokens of the prompt that a request would have."""
        async with self._chat.dry_visit(request.state.tenant):
            prompt, ignored = await self._rendered(request)
        headers = {"x-ignored-params": told} if (told := header_names(ignored)) else None
        answer = {"input_tokens": len(prompt.token_ids)}
        return Response(orjson.dumps(answer), media_type="application/json", headers=headers)

    async def _rendered(self, request: Request) -> tuple[Prompt, list[str]]:
        """The prompt, and the names of fields that nobody knows."""
        settings = self._settings
        raw = await read_json_body(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        wish, ignored, names = messages_request(parse_object(raw), CountRequest, strict=settings.strict)
        try:
            with self._chat.dry_run(wish.model):
                return await self._chat.render(wish, request.state.tenant), ignored
        except ServiceError as exc:
            names.tell(exc)
            raise
