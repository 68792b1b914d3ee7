"""What errors and ids of requests look like: OpenAI's way everywhere, but for the routes of another API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors import ServiceError

MESSAGES = "/v1/messages"
BY_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
CALLERS_FAULT = "invalid_request_error"


def error_body(error: ServiceError) -> dict[str, Any]:
    """OpenAI's shape, and ours."""
    return {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code},
    }


def messages_error_body(error: ServiceError) -> dict[str, Any]:
    """Anthropic's shape. It has no place for a code; the field is named in the message."""
    kind = BY_STATUS.get(error.status, CALLERS_FAULT)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def kinds_of_messages_errors() -> list[str]:
    """All that Anthropic's shape may say here."""
    return sorted({*BY_STATUS.values(), CALLERS_FAULT})


def error_body_at(path: str, error: ServiceError) -> dict[str, Any]:
    """The shape that clients of this path know."""
    return messages_error_body(error) if _of_messages(path) else error_body(error)


def id_headers_at(path: str) -> tuple[bytes, ...]:
    """Where clients of this path look for their request's id; the first is on every response."""
    return (b"x-request-id", b"request-id") if _of_messages(path) else (b"x-request-id",)


def _of_messages(path: str) -> bool:
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
