"""An answer that fails: whoever writes it is told once, however early it fails, and nothing comes after."""

from __future__ import annotations

import pytest

from service.engine.protocol import Delta, Sink
from service.errors import DeadlineExceeded, EngineUnavailable, ServiceError
from tests.test_encode import answer


class Heard(Sink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Delta | ServiceError] = []

    def put(self, delta: Delta) -> None:
        self.told.append(delta)

    def fail(self, error: ServiceError) -> None:
        self.told.append(error)


@pytest.mark.parametrize("listens_first", [True, False])
def test_a_failure_is_told_whether_it_comes_before_or_after_somebody_listens(listens_first: bool) -> None:
    made, heard, error = answer(), Heard(), DeadlineExceeded("too late")
    if listens_first:
        made.listen(heard)
    made.fail(error)
    if not listens_first:
        made.listen(heard)
    assert heard.told == [error]


def test_nothing_is_written_after_a_failure() -> None:
    made, heard, error = answer(), Heard(), DeadlineExceeded("too late")
    made.listen(heard)
    first = Delta(0, "a", [1])
    made.put(first)
    made.fail(error)
    made.put(Delta(0, "b", [2], "stop"))
    made.fail(EngineUnavailable("and now this"))
    assert heard.told == [first, error]
    assert made.record.output_tokens == 2, "what the engine made is counted all the same"
