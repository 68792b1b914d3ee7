"""When running answers end, in steps."""

from __future__ import annotations

import pytest

from service.admission.horizon import Horizon


def horizon(*steps: float) -> Horizon:
    """Answers that take so many steps from now."""
    made = Horizon()
    for number, length in enumerate(steps):
        made.enter(number, length)
    return made


def test_the_next_release_is_the_first_end() -> None:
    assert horizon(30, 10, 20).until_release(1) == pytest.approx(10)
    assert horizon(30, 10, 20).until_release(3) == pytest.approx(30)


def test_after_one_round_each_place_takes_an_answer_of_usual_length_more() -> None:
    assert horizon(10, 20, 30).until_release(4) == pytest.approx(10 + 20)
    assert horizon(10, 20, 30).until_release(7) == pytest.approx(10 + 40)


def test_steps_made_bring_all_ends_nearer() -> None:
    made = horizon(30, 40)
    made.advance(10)
    assert made.until_release(1) == pytest.approx(20)


def test_answers_that_began_together_are_not_expected_to_end_one_after_another() -> None:
    assert horizon(*[32] * 16).until_release(1) == pytest.approx(32)


def test_answers_overdue_end_no_faster_than_answers_do_on_average() -> None:
    made = horizon(*[30] * 4)
    made.advance(100)
    assert made.until_release(1) == pytest.approx(30 / 5)
    assert made.until_release(4) == pytest.approx(4 * 30 / 5)


def test_an_end_that_is_near_is_believed_but_several_are_not_expected_at_once() -> None:
    made = horizon(*[30] * 4)
    made.advance(29)
    assert made.until_release(1) == pytest.approx(1)
    assert made.until_release(3) == pytest.approx(2 * 30 / 5)


def test_an_answer_that_is_over_or_moved_counts_no_more_where_it_was() -> None:
    made = Horizon()
    first, second = made.enter(1, 10), made.enter(2, 20)
    first = made.move(1, first, 50)
    assert made.until_release(1) == pytest.approx(20)
    made.leave(2, second, 20)
    assert made.until_release(1) == pytest.approx(50)
    made.leave(1, first, 10)
    assert not made
