from __future__ import annotations

from typing import get_args

import pytest

from service import errors
from service.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    DeadlineUnreachable,
    Draining,
    EngineUnavailable,
    InputBudgetExceeded,
    InternalFault,
    InvalidJson,
    InvalidValue,
    NotReady,
    OutputBudgetExceeded,
    Overloaded,
    RateLimited,
    ServiceError,
)
from service.telemetry.outcome import FAULTS, outcome, outcome_of
from service.telemetry.record import Outcome
from tests.telemetry.records import abandoned, answered, choice, record, refused, waiting_choice


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidJson("no"), "invalid"),
        (InvalidValue("no"), "invalid"),
        (ContextLengthExceeded("no", param=None, limit="window"), "budget_rejected"),
        (InputBudgetExceeded("no", param=None, limit="window"), "budget_rejected"),
        (OutputBudgetExceeded("no", param=None, limit="window"), "budget_rejected"),
        (Overloaded("no"), "overloaded"),
        (RateLimited("no"), "rate_limited"),
        (DeadlineUnreachable("no"), "deadline"),
        (DeadlineExceeded("no"), "deadline"),
        (Draining("no"), "draining"),
        (NotReady("no"), "engine_error"),
        (EngineUnavailable("no"), "engine_error"),
        (InternalFault("no"), "engine_error"),
    ],
)
def test_errors_are_counted_by_who_is_at_fault(error: ServiceError, expected: Outcome) -> None:
    assert outcome_of(error) == expected
    assert outcome(refused(error)) == expected


def test_every_error_there_is_has_an_outcome_that_fits_its_status() -> None:
    made = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)
    ]
    assert len(made) > 15
    for kind in made:
        error = kind.__new__(kind)
        found = outcome_of(error)
        assert found in get_args(Outcome)
        assert (found in FAULTS) == (error.status >= 500 or found in ("overloaded", "deadline"))


def test_a_complete_answer_that_was_handed_over_is_ok() -> None:
    assert outcome(answered()) == "ok"


def test_a_client_that_leaves_after_the_last_byte_changes_nothing() -> None:
    assert outcome(answered(client_left=True)) == "ok"


def test_a_client_that_leaves_before_it_is_an_abort() -> None:
    assert outcome(abandoned(waiting_choice())) == "client_abort"
    assert outcome(answered(last_byte=None, client_left=True)) == "client_abort"


def test_an_error_that_follows_the_clients_leaving_does_not_count() -> None:
    assert outcome(abandoned(choice(finish=None), error=EngineUnavailable("no"))) == "client_abort"


def test_a_request_that_ended_for_no_known_reason_does_not_look_harmless() -> None:
    assert outcome(record(choice(finish=None), closed=2.0)) == "engine_error"
