"""Reads a request body: only JSON, only so large, only so slow."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from service.errors import BodyTooLarge, InvalidJson, RequestTimeout, WrongMediaType, shown

BODY_READ = "body_read"  # in a request's state: all of it has been there


def body_is_coming(scope: Scope) -> bool:
    """Whether the client may still be sending a body that nobody has read."""
    if scope.get("state", {}).get(BODY_READ):
        return False
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


async def read_json_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The raw bytes of a body that says it is JSON.

    Raises:
        WrongMediaType, BodyTooLarge, RequestTimeout, InvalidJson (empty), ClientDisconnect.
    """
    headers = request.headers
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType(
            f"The body must be application/json; its content-type is {shown(media_type) or 'missing'}."
        )
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read(request.receive, max_bytes)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {timeout_s:g} s.") from None
    setattr(request.state, BODY_READ, True)
    if not body:
        raise InvalidJson("The body is empty; send a JSON object.")
    return body


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {max_bytes} bytes this service reads; send less.")
