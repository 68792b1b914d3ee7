"""How a request ended, in one word out of a closed list."""

from __future__ import annotations

from service.errors import (
    CallerError,
    CapacityError,
    ContextLengthExceeded,
    Draining,
    InputBudgetExceeded,
    OutputBudgetExceeded,
    ServiceError,
)
from service.telemetry.record import Outcome, RequestRecord

# Faults of ours: spans become errors, and the promise of an answer is broken.
FAULTS: frozenset[Outcome] = frozenset(("overloaded", "deadline", "draining", "engine_error"))

BUDGET_ERRORS = (ContextLengthExceeded, InputBudgetExceeded, OutputBudgetExceeded)
CODES: dict[str, Outcome] = {
    "rate_limit_exceeded": "rate_limited",
    "deadline_unreachable": "deadline",
    "deadline_exceeded": "deadline",
}


def outcome(record: RequestRecord) -> Outcome:
    """The outcome of a request that is over. Where a client left and an error followed, it left.

    A request that ended for no reason anybody noted is a fault: it must not look harmless.
    """
    if record.complete and record.last_byte_s is not None and record.error is None:
        return "ok"
    if record.client_left:
        return "client_abort"
    return "engine_error" if record.error is None else outcome_of(record.error)


def outcome_of(error: ServiceError) -> Outcome:
    """The outcome an error stands for: its code where that says more, else its branch of the tree."""
    if error.code in CODES:
        return CODES[error.code]
    if isinstance(error, BUDGET_ERRORS):
        return "budget_rejected"
    if isinstance(error, Draining):
        return "draining"
    if isinstance(error, CapacityError):
        return "overloaded"
    return "invalid" if isinstance(error, CallerError) else "engine_error"
