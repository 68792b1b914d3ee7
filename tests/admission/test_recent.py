"""The newest values, by size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.recent import Recent

lengths = st.integers(1, 50).map(float)


def recent(*values: float, size: int = 128) -> Recent:
    """These values, oldest first."""
    kept = Recent(size)
    for value in values:
        kept.add(value)
    return kept


def test_the_oldest_gives_way() -> None:
    kept = recent(9, 1, 2, 3, size=3)
    assert len(kept) == 3
    assert kept.quantile(1) == 3


def test_quantiles_are_values_that_were_there() -> None:
    kept = recent(*range(100))
    assert [kept.quantile(share) for share in (0, 0.25, 0.5, 1)] == [0, 25, 50, 99]
    assert Recent(8).quantile(0.5) == 0.0


def test_answers_of_one_length_have_the_rest_of_it_still_to_come() -> None:
    kept = recent(*[32.0] * 20)
    assert [kept.rest(made, 100) for made in (0, 8, 31)] == [32, 24, 1]


def test_of_short_and_long_answers_one_that_has_outlived_the_short_is_long() -> None:
    kept = recent(*[10.0, 100.0] * 10)
    assert kept.rest(0, 1000) == 55
    assert kept.rest(10, 1000) == 90


def test_the_rest_ends_where_the_answer_is_cut() -> None:
    kept = recent(10.0, 100.0)
    assert kept.rest(0, 20) == 15
    assert kept.rest(15, 20) == 5


def test_longer_than_anything_seen_may_last_as_long_again_up_to_its_limit() -> None:
    kept = recent(10.0, 20.0)
    assert kept.rest(30, 1000) == 30
    assert kept.rest(30, 40) == 10


def test_without_any_value_it_may_become_as_long_as_allowed() -> None:
    assert Recent(8).rest(0, 500) == 500


@given(st.lists(lengths, min_size=1, max_size=40), st.integers(0, 60), st.integers(1, 60))
def test_the_rest_is_the_mean_over_what_lasted_longer(values: list[float], made: int, more: int) -> None:
    most = made + more
    kept = recent(*values, size=16)
    longer = [min(value, most) - made for value in values[-16:] if value > made]
    expected = sum(longer) / len(longer) if longer else min(more, made)
    assert kept.rest(made, most) == pytest.approx(expected)


@given(st.lists(lengths, max_size=60), st.integers(1, 20))
def test_what_is_kept_are_the_newest(values: list[float], size: int) -> None:
    kept = recent(*values, size=size)
    newest = sorted(values[-size:])
    assert [kept.quantile(at / len(newest)) for at in range(len(newest))] == pytest.approx(newest)
