"""What surrounds every request, as plain ASGI: a function-style middleware would hide disconnects."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLEAN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class RequestId:
    """Gives every response an `x-request-id`: the client's own when clean and short, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if CLEAN_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"

        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
