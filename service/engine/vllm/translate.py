"""The one place where vLLM's errors become ours."""

from __future__ import annotations

from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMServerError
from vllm.v1.engine.exceptions import EngineDeadError

from service.errors import EngineUnavailable, InternalFault, InvalidValue, Overloaded, ServiceError, shown


def translate(exc: BaseException) -> ServiceError:
    """What an error of the engine means to the caller."""
    if isinstance(exc, ServiceError):
        return exc
    if isinstance(exc, VLLMClientError):
        param = getattr(exc, "parameter", None)  # only some of vLLM's client errors have one
        reason = exc.args[0] if exc.args else "no reason given"
        return InvalidValue(f"The engine does not accept this request: {shown(reason, 200)}", param=param)
    if isinstance(exc, GracefulHTTPError):
        return Overloaded("The engine's queue is full; try again later.")
    if isinstance(exc, EngineDeadError):
        return EngineUnavailable("The engine has stopped; try again later.")
    if isinstance(exc, VLLMServerError):
        return EngineUnavailable("The engine failed on this request; try again later.")
    return InternalFault("The engine failed on this request for a reason that is in the server's log.")
