"""What every request meets in Serve's proxy: before a replica is chosen, and when one is lost.

RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`. It knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray.prefix import joined, marks
from service.admission.tenants import Tenants
from service.errors import EngineUnavailable, NotReady, ServiceError, Unauthenticated
from service.settings import load
from service.web.body import BODY_READ
from service.web.refusal import render
from service.web.shape import MESSAGES, error_body_at

SESSION = "x-session-id"  # a caller's own; from here on it holds the marks, where Serve looks for it
MOST_BYTES = 2**20  # of a body that is looked into
LOOK_S = 1.0  # for a body to come; a slower one goes where there is least to do
SERVES_OWN = "/-/"
SERVES_HEADERS = ("x-request-disconnect-disabled", "x-request-timeout-seconds", "serve_multiplexed_model_id")
LOST = "The replica that worked on this request has been lost; send the request again."
NONE_YET = "No replica takes requests at the moment; try again in a few seconds."


def middlewares() -> list[Middleware]:
    """The outermost last."""
    tenants = Tenants(load().tenants_file)
    return [Middleware(Marked, tenants=tenants), Middleware(Finished)]


class Marked:
    """Tells the router how a request begins, and whose cache it may share; callers do not steer Serve."""

    def __init__(self, app: ASGIApp, tenants: Tenants) -> None:
        self._app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body: dict[str, object] = {}
        if scope["method"] == "POST" and _worth_a_look(scope):
            body, receive = await _looked_into(receive)
        headers = MutableHeaders(scope=scope)
        for name in SERVES_HEADERS:
            del headers[name]
        found = marks(self._group(scope), body, headers.get(SESSION, ""))
        headers[SESSION] = joined(found)
        await self._app(scope, receive, send)

    def _group(self, scope: Scope) -> str:
        """Its cache group. A key that is not known here (yet) is a group of its own."""
        given = [value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")]
        keys = [value if value[:7].lower() == b"bearer " else b"Bearer " + value for value in given]
        try:
            return self._tenants.identify(keys).cache_group
        except Unauthenticated:
            return hashlib.sha256(b"\0".join(keys)).hexdigest()


class Finished:
    """Every response ends, and says in our words why it is no answer, also when its replica ends first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(SERVES_OWN):
            return await self._app(scope, receive, send)
        response = _Response(send)
        await self._app(scope, receive, response.send)
        if response.error is not None:
            scope.setdefault("state", {})[BODY_READ] = True  # by Serve, whatever came of it
            await render(response.error, scope["path"])(scope, receive, send)
        elif response.is_cut_stream:
            await send({"type": "http.response.body", "body": _error_event(scope["path"])})


class _Response:
    """What was sent of a response, and what is missing."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.error: ServiceError | None = EngineUnavailable(LOST)
        self.is_cut_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            if request_id := headers.get("x-request-id"):
                headers["x-request-id"] = request_id  # Serve adds one to ours
            kind = headers.get("content-type", "")
            if message["status"] >= 400 and kind.startswith("text/plain"):  # Serve's words, not ours
                self.error = NotReady(NONE_YET)
                return
            self.error = None
            self.is_cut_stream = kind.startswith("text/event-stream")
            message = {**message, "headers": headers.raw}
        elif self.error is not None:
            return
        elif not message.get("more_body", False):
            self.is_cut_stream = False
        await self._send(message)


def _error_event(path: str) -> bytes:
    body = orjson.dumps(error_body_at(path, EngineUnavailable(LOST)))
    return (b"event: error\n" if path.startswith(MESSAGES) else b"") + b"data: " + body + b"\n\n"


def _worth_a_look(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    length = headers.get("content-length", "")
    return headers.get("content-type", "").startswith("application/json") and not (
        length.isdigit() and int(length) > MOST_BYTES
    )


async def _looked_into(receive: Receive) -> tuple[dict[str, object], Receive]:
    """The object in a body, empty where there is none, and a `receive` that gives all of it once more."""
    seen: deque[Message] = deque()
    raw = bytearray()
    try:
        async with asyncio.timeout(LOOK_S):
            while not seen or (seen[-1].get("more_body", False) and len(raw) <= MOST_BYTES):
                message = await receive()
                seen.append(message)
                raw += message.get("body", b"")
    except TimeoutError:
        raw.clear()

    async def again() -> Message:
        return seen.popleft() if seen else await receive()

    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    return body if isinstance(body, dict) else {}, again
