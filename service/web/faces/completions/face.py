"""The route of OpenAI's older completions."""

from __future__ import annotations

import uuid

from service.admission.tenant import Tenant
from service.chat.reply import Reply
from service.settings import Settings
from service.web.face import Asked, Face
from service.web.faces.completions.encode import TextEncoder, text_body
from service.web.faces.completions.request import completion_requests
from service.web.faces.names import Names
from service.web.wire import JsonObject

NAMES = Names({"messages": "prompt"}, parts={}, words={})


class CompletionsFace(Face):
    """Text that goes on. A list of prompts is as many requests, whose answers leave together."""

    route = "/v1/completions"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def new_id(self) -> str:
        return f"cmpl-{uuid.uuid4().hex}"

    def read(self, body: JsonObject, tenant: Tenant) -> Asked:
        strict, max_n = self._settings.strict, self._settings.max_n
        wish, requests, ignored = completion_requests(body, strict=strict, max_n=max_n)
        options = wish.stream_options

        def encoder(reply: Reply) -> TextEncoder:
            return TextEncoder(
                reply,
                with_usage=bool(options and options.include_usage),
                running_usage=bool(options and options.continuous_usage_stats),
            )

        return Asked(requests, ignored, encoder, text_body, NAMES.tell)
