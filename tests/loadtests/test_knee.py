"""Where the knee is, how sure that is, and how it is looked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.knee import find
from loadtests.sweep import NEAR, Sweep
from tests.loadtests.samples import ended, held, row, sample


def test_the_knee_is_where_the_share_of_good_answers_crosses() -> None:
    knee = find([held(1, 100, 100), held(2, 100, 100), held(4, 80, 100)], 0.9)
    assert knee is not None
    assert knee.rate == pytest.approx(3.0)
    assert knee.row.step.rate_per_s == 4
    assert knee.low <= 3.0 <= knee.high


def test_more_requests_make_it_surer() -> None:
    few, many = (find([held(1, n, n), held(2, n, n), held(4, int(n * 0.8), n)], 0.9) for n in (10, 1000))
    assert few is not None and many is not None
    assert many.high - many.low < (few.high - few.low) / 2


def test_bad_answers_that_come_together_make_it_less_sure() -> None:
    apart = find([held(1, 100, 100), held(4, 80, 100)], 0.9)
    together = find([held(1, 100, 100), row(ended([True] * 80 + [False] * 20), rate=4)], 0.9)
    assert apart is not None and together is not None
    assert together.rate == apart.rate
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_a_knee_beyond_what_was_tried_is_told_as_such() -> None:
    knee = find([held(1, 50, 50), held(2, 50, 50)], 0.9)
    assert knee is not None and knee.censored
    assert knee.rate == 2


def test_one_unlucky_step_below_does_not_hide_the_knee() -> None:
    knee = find([held(1, 88, 100), held(2, 100, 100), held(4, 20, 100)], 0.9)
    assert knee is not None
    assert 2 < knee.rate < 4


def test_without_an_open_loop_there_is_none() -> None:
    assert find([row([sample()], part="concurrency", rate=0.0, users=1)], 0.9) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6))
def test_the_knee_lies_in_its_interval_and_in_what_was_tried(counts: list[tuple[int, int]]) -> None:
    steps = [held(2.0**n, min(good, of), of) for n, (good, of) in enumerate(counts)]
    knee = find(steps, 0.9)
    assert knee is not None
    assert 0 <= knee.low <= knee.rate <= knee.high <= 2.0 ** (len(steps) - 1)


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_sweep_brackets_the_capacity(capacity: float, first: float) -> None:
    sweep = Sweep(lambda rate: rate <= capacity, most_steps=40)
    sweep.run(first)
    assert max(sweep.held) <= capacity < min(sweep.broke)
    assert min(sweep.broke) / max(sweep.held) <= NEAR


def test_a_sweep_that_never_holds_ends() -> None:
    sweep = Sweep(lambda rate: False, most_steps=40)
    sweep.run(1.0)
    assert not sweep.held and len(sweep.broke) < 10
