"""Reads a request body: only JSON, only so large, only so slow."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.errors import BodyTooLarge, InvalidJson, RequestTimeout, WrongMediaType, shown


async def read_json_body(headers: Headers, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The raw bytes of a body that says it is JSON.

    Raises:
        WrongMediaType, BodyTooLarge, RequestTimeout, InvalidJson (empty), ClientDisconnect.
    """
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
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {timeout_s:g} s.") from None


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
    if not size:
        raise InvalidJson("The body is empty; send a JSON object.")
    return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {max_bytes} bytes this service reads; send less.")
