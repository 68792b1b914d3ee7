"""What surrounds every request, as plain ASGI: a function-style middleware would hide disconnects."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Draining, InternalFault, shown
from service.web.refusal import CUT_OFF, render
from service.web.shape import id_headers_at

log = logging.getLogger(__name__)

CLEAN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
POLICY = b"content-security-policy"  # a page that runs scripts brings a policy of its own
SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
NOTHING_RUNS = (POLICY, b"default-src 'none'; frame-ancestors 'none'")


class Surround:
    """What every response has: an `x-request-id`, a place in the count, headers against guessing browsers.

    The id is the client's own when clean and short, else a new one.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, int], None]) -> None:
        self._app = app
        self._count = count  # path and status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if CLEAN_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(scope["path"], message["status"])
                message["headers"] = _headers(message.get("headers", ()), scope["path"], request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the drain limit has passed: this is the last thing to do
            if begun:
                raise
            await render(Draining(CUT_OFF), scope["path"])(scope, receive, send_with_headers)
        except Exception:
            if begun:
                raise
            log.exception("unexpected error on %s, request %s", shown(scope["path"], 120), request_id)
            fault = InternalFault("Something went wrong in the service; the server's log has the details.")
            await render(fault, scope["path"])(scope, receive, send_with_headers)


def _headers(given: list[tuple[bytes, bytes]], path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    headers = [*given, *((name, request_id.encode()) for name in id_headers_at(path)), *SAFE]
    if not any(name == POLICY for name, _ in given):
        headers.append(NOTHING_RUNS)
    return headers
