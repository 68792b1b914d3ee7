"""All faces but the service's own, on their routes."""

from __future__ import annotations

from fastapi import APIRouter

from service.chat.service import Chat
from service.settings import Settings
from service.web.answering import Answering
from service.web.faces.completions.face import CompletionsFace
from service.web.faces.messages.face import MessagesFace


def face_routes(chat: Chat, answering: Answering, settings: Settings) -> APIRouter:
    """`/v1/completions` and `/v1/messages`."""
    router = APIRouter(tags=["faces"])
    completions = CompletionsFace(settings)
    router.post(completions.route, summary="Let a text go on, without a chat template")(
        answering.endpoint(completions)
    )
    messages = MessagesFace(chat, settings)
    router.post(messages.route, summary="Answer a conversation, in Anthropic's shapes")(
        answering.endpoint(messages)
    )
    router.post(f"{messages.route}/count_tokens", summary="How many tokens such a conversation has")(
        messages.count
    )
    return router
