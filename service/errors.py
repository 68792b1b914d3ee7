"""Everything that can go wrong for a caller, by who is at fault.

    ServiceError
    ├─ CallerError                 the request itself is wrong; repeating it will not help
    │  ├─ InvalidValue         400 invalid_value
    │  │  ├─ MissingValue      400 missing_value
    │  │  ├─ Unsupported       400 unsupported_parameter
    │  │  ├─ InvalidTemplate   400 invalid_template
    │  │  └─ BudgetExceeded        knows whose limit it is
    │  │     ├─ ContextLengthExceeded  400 context_length_exceeded
    │  │     ├─ InputBudgetExceeded    400 input_budget_exceeded
    │  │     └─ OutputBudgetExceeded   400 output_budget_exceeded
    │  ├─ InvalidHttp          400 invalid_http
    │  ├─ InvalidJson          400 invalid_json
    │  ├─ Unauthenticated      401 invalid_api_key
    │  ├─ NotAllowed           403 not_allowed
    │  ├─ NotFound             404 not_found
    │  │  └─ ModelNotFound     404 model_not_found
    │  ├─ MethodNotAllowed     405 method_not_allowed
    │  ├─ RequestTimeout       408 request_timeout
    │  ├─ BodyTooLarge         413 body_too_large
    │  ├─ UriTooLong           414 uri_too_long
    │  ├─ WrongMediaType       415 unsupported_media_type
    │  └─ HeadersTooLarge      431 headers_too_large
    ├─ CapacityError               nobody is at fault: there is more to do than can be done in time
    │  ├─ RateLimited          429 rate_limit_exceeded
    │  ├─ Overloaded           429 overloaded
    │  ├─ DeadlineUnreachable  429 deadline_unreachable
    │  └─ DeadlineExceeded     504 deadline_exceeded
    └─ ServerError                 the service cannot answer now
       ├─ InternalFault        500 internal_error
       ├─ NotReady             503 not_ready
       ├─ Draining             503 draining
       └─ EngineUnavailable    503 engine_unavailable

Status, type and code live on the class; `render` in `service.web.refusal` turns an instance
into the one JSON shape. What a message echoes goes through `shown`, which bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

RETRY_AFTER_S = 5


def shown(value: object, limit: int = 64) -> str:
    """`value` as it may stand in a message: on one line, printable, at most `limit` characters."""
    text = value[: limit + 1] if isinstance(value, str) else repr(value)[: limit + 1]
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class StartError(Exception):
    """For the operator: the service cannot start; the message says why and what to change."""


class FarTooLong(Exception):
    """Between rooms: a text of so many characters has more tokens than it may, and none were counted."""

    def __init__(self, least_tokens: int, characters: int, most_characters: int) -> None:
        super().__init__(least_tokens, characters, most_characters)
        self.least_tokens = least_tokens
        self.characters = characters
        self.most_characters = most_characters  # that could fit


class ServiceError(Exception):
    """An error with a place in the HTTP contract: `message` says what the caller can do about it."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that belong to this refusal."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


class CallerError(ServiceError):
    """The request is at fault."""

    status = 400
    type = "invalid_request_error"


class InvalidValue(CallerError):
    """A field has a value that cannot be used."""

    code = "invalid_value"


class MissingValue(InvalidValue):
    """A required field is absent."""

    code = "missing_value"


class Unsupported(InvalidValue):
    """A field of the API that this service, or this model, cannot honour."""

    code = "unsupported_parameter"


class InvalidTemplate(InvalidValue):
    """The chat template refuses these messages, or the request tries to bring its own template."""

    code = "invalid_template"


class BudgetExceeded(InvalidValue):
    """More tokens than a limit allows; `limit` says whose it is."""

    def __init__(self, message: str, *, param: str | None, limit: str) -> None:
        super().__init__(message, param=param)
        self.limit = limit


class ContextLengthExceeded(BudgetExceeded):
    """Prompt and output do not fit the context window."""

    code = "context_length_exceeded"


class InputBudgetExceeded(BudgetExceeded):
    """The prompt is longer than the operator allows."""

    code = "input_budget_exceeded"


class OutputBudgetExceeded(BudgetExceeded):
    """The answer asked for is longer than the operator allows."""

    code = "output_budget_exceeded"


class InvalidHttp(CallerError):
    """The bytes are no HTTP request."""

    code = "invalid_http"


class InvalidJson(CallerError):
    """The body is not the JSON object it should be."""

    code = "invalid_json"


class Unauthenticated(CallerError):
    """The request has no API key, or one that nobody has."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class NotAllowed(CallerError):
    """The key is known and has not the right."""

    status = 403
    type = "permission_error"
    code = "not_allowed"


class NotFound(CallerError):
    """No such route, or nothing by that name."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No model of that name is served here."""

    code = "model_not_found"


class MethodNotAllowed(CallerError):
    """The route exists, the method does not."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        return {"allow": self.allow}


class RequestTimeout(CallerError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class BodyTooLarge(CallerError):
    """The body is larger than the service reads."""

    status = 413
    code = "body_too_large"


class UriTooLong(CallerError):
    """The URL is longer than the service reads."""

    status = 414
    code = "uri_too_long"


class WrongMediaType(CallerError):
    """The body is not declared as JSON."""

    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(CallerError):
    """The headers are more, or larger, than the service reads."""

    status = 431
    code = "headers_too_large"


class CapacityError(ServiceError):
    """Nobody is at fault: there is more to do than can be done in time. 429, so that balancers stay."""

    status = 429
    type = "rate_limit_error"
    retry_after_s = RETRY_AFTER_S
    standing: Mapping[str, str] = MappingProxyType({})  # headers that say what is left of the tenant's quota

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, **self.standing}


class RateLimited(CapacityError):
    """The tenant has used up its own limit."""

    code = "rate_limit_exceeded"


class Overloaded(CapacityError):
    """The service is full."""

    code = "overloaded"


class DeadlineUnreachable(CapacityError):
    """The predicted first token comes later than the caller is willing to wait."""

    code = "deadline_unreachable"


class DeadlineExceeded(CapacityError):
    """The caller's deadline has passed."""

    status = 504
    type = "server_error"
    code = "deadline_exceeded"


class ServerError(ServiceError):
    """The service is at fault."""


class InternalFault(ServerError):
    """Something broke that has no better name; the log has the rest."""

    code = "internal_error"


class _Unavailable(ServerError):
    status = 503
    retry_after_s = RETRY_AFTER_S


class NotReady(_Unavailable):
    """The model is still being loaded."""

    code = "not_ready"


class Draining(_Unavailable):
    """The service is going down and takes no new work."""

    code = "draining"


class EngineUnavailable(_Unavailable):
    """The engine has died or does not answer."""

    code = "engine_unavailable"


OURS = (CapacityError, ServerError)  # the request could have been answered: it is none of its caller's doing
