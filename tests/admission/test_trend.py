"""A line learned from samples."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.trend import Trend

times = st.floats(0.001, 1e4)
causes = st.floats(0, 1e6)


def learned(base: float, a: float, b: float, noise: float = 0.0, samples: int = 200) -> Trend:
    """A trend that has seen a true relation."""
    chance, trend = random.Random(7), Trend()
    for _ in range(samples):
        x, z = chance.uniform(10, 4000), chance.uniform(1, 16)
        trend.add((base + a * x + b * z) * chance.lognormvariate(0, noise), x, z)
    return trend


def test_nothing_is_known_before_the_first_sample() -> None:
    trend = Trend()
    assert not trend.known
    trend.add(1.5, 40, 1)
    assert trend.known


def test_after_one_sample_it_says_that_sample_for_everything() -> None:
    trend = Trend()
    trend.add(1.5, 40, 1)
    assert trend.at(4000, 16) == pytest.approx(1.5)


def test_a_true_line_is_found_through_noise() -> None:
    trend = learned(0.05, 0.002, 0.005, noise=0.1)
    for x, z in ((10, 1), (1000, 8), (4000, 16)):
        assert trend.at(x, z) == pytest.approx(0.05 + 0.002 * x + 0.005 * z, rel=0.25, abs=0.1)


def test_one_cause_is_enough() -> None:
    trend = Trend()
    for n in (1, 4, 8, 16, 2, 12) * 10:
        trend.add(0.05 + 0.005 * n, n)
    assert trend.at(1) == pytest.approx(0.055, rel=0.1)
    assert trend.at(16) == pytest.approx(0.13, rel=0.05)


def test_a_stall_bends_the_line_little_and_not_for_long() -> None:
    steady, stalled = learned(0.05, 0.002, 0.005, noise=0.05), learned(0.05, 0.002, 0.005, noise=0.05)
    stalled.add(600.0, 2000, 8)
    assert stalled.at(2000, 8) < 1.3 * steady.at(2000, 8)
    for _ in range(64):
        for trend in (steady, stalled):
            trend.add(0.05 + 0.002 * 2000 + 0.005 * 8, 2000, 8)
    assert stalled.at(2000, 8) == pytest.approx(steady.at(2000, 8), rel=0.1)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_machine_that_has_become_faster_or_slower_is_followed(factor: float) -> None:
    trend = learned(0.05, 0.002, 0.005)
    chance = random.Random(8)
    for _ in range(300):
        x, z = chance.uniform(10, 4000), chance.uniform(1, 16)
        trend.add(factor * (0.05 + 0.002 * x + 0.005 * z), x, z)
    assert trend.at(2000, 8) == pytest.approx(factor * (0.05 + 4 + 0.04), rel=0.3)


def test_what_has_not_varied_has_no_slope() -> None:
    trend = Trend()
    for _ in range(50):
        trend.add(1.0, 40, 16)
    assert trend.at(4000, 1) == pytest.approx(1.0)


def test_what_has_hardly_varied_is_not_taken_for_a_cause() -> None:
    trend = Trend()
    for _ in range(30):
        trend.add(0.9, 39.9, 16)
        trend.add(1.1, 40.1, 16)
    assert trend.at(400, 16) < 3


@given(st.lists(st.tuples(times, causes, causes), min_size=1, max_size=60), causes, causes)
def test_no_line_falls_or_goes_below_zero(
    samples: list[tuple[float, float, float]], a: float, b: float
) -> None:
    trend = Trend()
    for sample in samples:
        trend.add(*sample)
    assert trend.at(0, 0) >= -1e-9
    assert trend.at(a, b) >= trend.at(0, 0) - 1e-9
    assert trend.at(a, b) <= trend.at(a + 1, b + 1) * (1 + 1e-9) + 1e-9
