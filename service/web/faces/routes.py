"""All faces but the service's own, on their routes."""

from __future__ import annotations

from fastapi import APIRouter

from service.settings import Settings
from service.web.answering import Answering
from service.web.faces.completions.face import CompletionsFace


def face_routes(answering: Answering, settings: Settings) -> APIRouter:
    """`/v1/completions`."""
    router = APIRouter(tags=["faces"])
    completions = CompletionsFace(settings)
    router.post(completions.route, summary="Let a text go on, without a chat template")(
        answering.endpoint(completions)
    )
    return router
