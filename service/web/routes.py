"""The chat routes, OpenAI's: the service's own face, and the models it serves."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from starlette.responses import JSONResponse

from service.admission.tenant import Tenant
from service.chat.reply import Reply
from service.chat.service import Chat
from service.settings import Settings
from service.telemetry.record import CHAT_ROUTE
from service.web.answering import Answering
from service.web.encode import ChunkEncoder, whole_body
from service.web.face import Asked, Face
from service.web.wire import JsonObject, chat_request


def chat_routes(chat: Chat, answering: Answering, settings: Settings) -> APIRouter:
    """`/v1/chat/completions` and `/v1/models`."""
    models = _Models(chat)
    router = APIRouter(tags=["chat"])
    answering.route(router, ChatFace(settings), "Answer a conversation, streamed or whole")
    router.get("/v1/models", summary="The model served here, and its LoRA adapters")(models.all)
    router.get("/v1/models/{name:path}", summary="One of them by name")(models.one)
    return router


class ChatFace(Face):
    """OpenAI's chat completions."""

    route = CHAT_ROUTE

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def new_id(self) -> str:
        return f"chatcmpl-{uuid.uuid4().hex}"

    def read(self, body: JsonObject, tenant: Tenant) -> Asked:
        wish, ignored = chat_request(body, strict=self._settings.strict, max_n=self._settings.max_n)
        options = wish.stream_options

        def encoder(reply: Reply) -> ChunkEncoder:
            running = bool(options and options.continuous_usage_stats)
            return ChunkEncoder(reply, with_usage=wish.includes_usage, running_usage=running)

        return Asked([wish], ignored, encoder, whole_body)


class _Models:
    def __init__(self, chat: Chat) -> None:
        self._models = chat.models

    async def all(self) -> JSONResponse:
        return JSONResponse({"object": "list", "data": self._models.cards()})

    async def one(self, name: str) -> JSONResponse:
        return JSONResponse(self._models.card(name))
