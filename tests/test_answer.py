"""An answer that fails: whoever writes it is told once, however early it fails, and nothing comes after."""

from __future__ import annotations

import pytest

from service.chat.together import Together
from service.engine.protocol import Delta, Sink
from service.errors import DeadlineExceeded, EngineUnavailable, ServiceError
from tests.test_encode import NoGeneration, answer


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


def test_an_end_that_could_not_be_handed_over_ends_in_an_error() -> None:
    class Broken(Heard):
        def put(self, delta: Delta) -> None:
            raise ValueError("this cannot be encoded")

    made, heard, error = answer(), Broken(), EngineUnavailable("passed on by the engine")
    made.listen(heard)
    with pytest.raises(ValueError, match="encoded"):
        made.put(Delta(0, "a", [1], "stop"))
    made.fail(error)
    assert heard.told == [error]


def test_what_comes_after_the_end_changes_nothing() -> None:
    made, heard = answer(), Heard()
    made.listen(heard)
    made.put(end := Delta(0, "a", [1], "stop"))
    made.fail(DeadlineExceeded("too late"))
    assert heard.told == [end] and made.record.error is None


def test_several_answers_are_complete_with_their_last_word_for_whoever_listens_late() -> None:
    class Watching(Heard):
        def put(self, delta: Delta) -> None:
            super().put(delta)
            complete.append(both.complete)

    complete: list[bool] = []
    first, second = answer(), answer()
    both = Together(first, streamed=True)
    both.add(second)
    for made in (first, second):
        made.put(Delta(0, "a", [1]))
        made.put(Delta(0, "b", [2], "stop"))
    both.listen(Watching())
    assert complete == [False, False, False, True]


def test_a_failure_ends_the_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(NoGeneration, "abort", lambda generation: ended.append(generation))
    made = answer()
    made.listen(Heard())
    made.fail(DeadlineExceeded("too late"))
    assert len(ended) == 1, "also where the reader is behind, and the answer is closed much later"


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
