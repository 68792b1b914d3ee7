"""Turns every error into the JSON shape that clients of its path know."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import (
    CallerError,
    InvalidValue,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    shown,
)
from service.web.body import body_is_coming
from service.web.shape import error_body_at

LINGER_S = 2
CUT_OFF = "The service is shutting down and could not finish this answer."


class Refusal(Response):
    """An error as a response, said at once; what is still coming of the request's body is let by.

    A connection that is closed while bytes arrive is reset, and the client never reads why.
    """

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if body_is_coming(scope):
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # or the server ends
                async with asyncio.timeout(LINGER_S):
                    await _let_by(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def render(error: ServiceError, path: str) -> Response:
    """The response for an error at this path."""
    return Refusal(orjson.dumps(error_body_at(path, error)), error.status, error.headers)


async def _let_by(receive: Receive) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)


async def service_error(request: Request, exc: Exception) -> Response:
    """Handler for our own errors."""
    assert isinstance(exc, ServiceError)
    return render(exc, request.scope["path"])


async def framework_error(request: Request, exc: Exception) -> Response:
    """Handler for what routing refuses: unknown routes and methods."""
    assert isinstance(exc, HTTPException)
    return render(_routing_error(request, exc), request.scope["path"])


async def invalid_query(request: Request, exc: Exception) -> Response:
    """Handler for query parameters of the wrong type."""
    assert isinstance(exc, RequestValidationError)
    first = exc.errors()[0]
    name = str(first["loc"][-1])
    return render(InvalidValue(f"{name}: {first['msg']}.", param=name), request.scope["path"])


def _routing_error(request: Request, exc: HTTPException) -> ServiceError:
    path = shown(request.url.path, 120)
    if exc.status_code == 404:
        return NotFound(f"There is nothing at {path}; /openapi.json lists the routes.")
    if exc.status_code == 405:
        allow = (exc.headers or {}).get("Allow", "")
        said = f"{path} does not take {shown(request.method, 20)}; use {allow}."
        return MethodNotAllowed(said, allow=allow)
    return CallerError(shown(str(exc.detail), 200))


async def client_left(request: Request, exc: Exception) -> Response:
    """Handler for a client that left before its request was read: nothing is wrong, and nobody reads this."""
    return Response(status_code=499)


def handlers() -> Mapping[Any, Any]:
    """Exception class -> handler, as FastAPI takes them."""
    return {
        ServiceError: service_error,
        HTTPException: framework_error,
        RequestValidationError: invalid_query,
        ClientDisconnect: client_left,
    }
