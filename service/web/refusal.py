"""Turns every error into the one JSON shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from service.errors import (
    CallerError,
    InternalFault,
    InvalidValue,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    shown,
)
from service.web.encode import error_body

log = logging.getLogger(__name__)


def render(error: ServiceError) -> Response:
    """The response for an error."""
    headers = error.headers
    return Response(orjson.dumps(error_body(error)), error.status, headers, media_type="application/json")


async def service_error(request: Request, exc: Exception) -> Response:
    """Handler for our own errors."""
    assert isinstance(exc, ServiceError)
    return render(exc)


async def framework_error(request: Request, exc: Exception) -> Response:
    """Handler for what routing refuses: unknown routes and methods."""
    assert isinstance(exc, HTTPException)
    path = shown(request.url.path, 120)
    if exc.status_code == 404:
        return render(NotFound(f"There is nothing at {path}; /openapi.json lists the routes."))
    if exc.status_code == 405:
        allow = (exc.headers or {}).get("Allow", "")
        return render(
            MethodNotAllowed(f"{path} does not take {shown(request.method, 20)}; use {allow}.", allow=allow)
        )
    return render(CallerError(shown(str(exc.detail), 200)))


async def invalid_query(request: Request, exc: Exception) -> Response:
    """Handler for query parameters of the wrong type."""
    assert isinstance(exc, RequestValidationError)
    first = exc.errors()[0]
    name = str(first["loc"][-1])
    return render(InvalidValue(f"{name}: {first['msg']}.", param=name))


async def client_left(request: Request, exc: Exception) -> Response:
    """Handler for a client that left before its request was read: nothing is wrong, and nobody reads this."""
    return Response(status_code=499)


async def unexpected(request: Request, exc: Exception) -> Response:
    """Handler for everything else: the caller learns that it happened, the log learns what."""
    log.error("unexpected error on %s", request.url.path, exc_info=exc)
    return render(InternalFault("Something went wrong in the service; the server's log has the details."))


def handlers() -> Mapping[Any, Any]:
    """Exception class -> handler, as FastAPI takes them."""
    return {
        ServiceError: service_error,
        HTTPException: framework_error,
        RequestValidationError: invalid_query,
        ClientDisconnect: client_left,
        Exception: unexpected,
    }
