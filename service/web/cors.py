"""Which web pages may call this service from a browser: those of the origins that the operator names."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from service.errors import NotAllowed
from service.web.refusal import render

TOLD = (
    "request-id",
    "retry-after",
    "server-timing",
    "x-budget-action",
    "x-budget-dropped-messages",
    "x-budget-max-output-tokens",
    "x-ignored-params",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
)


class Cors(CORSMiddleware):
    """Starlette's, with its refusals in our shape. It wraps every `send`, so it is there only when asked for.

    Credentials in the browser's sense (cookies) are never allowed: a key is sent by the page itself.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=TOLD,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser that asks before it sends the request itself; it needs no key."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        refusal = render(NotAllowed("Pages of this origin may not make this request here."), "/")
        refusal.headers["vary"] = answer.headers["vary"]
        return refusal
