"""All faces but the service's own, on their routes."""

from __future__ import annotations

from fastapi import APIRouter

from service.chat.service import Chat
from service.settings import Settings
from service.web.answering import Answering
from service.web.faces.completions.face import CompletionsFace
from service.web.faces.messages.face import MessagesFace
from service.web.faces.responses.face import ResponsesFace


def face_routes(chat: Chat, answering: Answering, settings: Settings) -> APIRouter:
    """`/v1/completions`, `/v1/messages` and `/v1/responses`."""
    router = APIRouter(tags=["faces"])
    answering.route(router, CompletionsFace(settings), "Let a text go on, without a chat template")
    messages = MessagesFace(chat, settings)
    answering.route(router, messages, "Answer a conversation, in Anthropic's shapes")
    router.post(f"{messages.route}/count_tokens", summary="How many tokens such a conversation has")(
        messages.count
    )
    responses = ResponsesFace(settings)
    answering.route(router, responses, "Answer a conversation of items, as OpenAI's newer API has it")
    one = f"{responses.route}/{{response_id}}"
    router.get(one, summary="A response that was stored")(responses.stored)
    router.delete(one, summary="Forget a stored response")(responses.forget)
    router.post(f"{one}/cancel", summary="Refused: no response runs in the background")(responses.cancel)
    return router
