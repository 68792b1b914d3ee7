"""How a request ended, in one word out of a closed list."""

from __future__ import annotations

from service.errors import (
    BudgetExceeded,
    CallerError,
    CapacityError,
    DeadlineExceeded,
    DeadlineUnreachable,
    Draining,
    RateLimited,
    ServerError,
    ServiceError,
)
from service.telemetry.record import Outcome, RequestRecord

# Faults of ours: spans become errors, and the promise of an answer is broken.
FAULTS: frozenset[Outcome] = frozenset(("overloaded", "deadline", "draining", "engine_error"))

# The first that fits: what is special before its branch of the tree.
BY_ERROR: tuple[tuple[type[ServiceError], Outcome], ...] = (
    (BudgetExceeded, "budget_rejected"),
    (RateLimited, "rate_limited"),
    (DeadlineUnreachable, "deadline"),
    (DeadlineExceeded, "deadline"),
    (Draining, "draining"),
    (CallerError, "invalid"),
    (CapacityError, "overloaded"),
    (ServerError, "engine_error"),
)


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
    """The outcome an error stands for, by its place in the tree."""
    return next((found for kind, found in BY_ERROR if isinstance(error, kind)), "engine_error")
