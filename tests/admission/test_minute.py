"""A window of a minute that slides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.counts import Counts
from service.admission.minute import Minutes, Usage


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now = 60_000.0

    def __call__(self) -> float:
        return self.now


def usage(limit: int, elapsed_s: float, before: int, current: int) -> Usage:
    return Usage(limit, 1000, elapsed_s, before, current)


def test_what_was_used_in_the_minute_before_fades_as_this_one_passes() -> None:
    assert usage(100, 0, 60, 0).used == 60
    assert usage(100, 30, 60, 10).used == 40
    assert usage(100, 30, 60, 10).remaining == 60
    assert usage(100, 59.999, 60, 0).used == pytest.approx(0, abs=0.01)


def test_a_limit_is_whole_again_when_both_minutes_have_faded() -> None:
    assert usage(100, 20, 0, 0).reset_s == 0
    assert usage(100, 20, 5, 0).reset_s == 40
    assert usage(100, 20, 0, 5).reset_s == 100


counts = st.integers(0, 1000)


@given(st.integers(1, 1000), st.floats(0, 59.9), counts, counts, st.data())
def test_the_wait_told_is_long_enough_and_not_longer(
    limit: int, elapsed_s: float, before: int, current: int, data: st.DataObject
) -> None:
    now = usage(limit, elapsed_s, before, min(current, limit))
    amount = data.draw(st.integers(1, limit))
    wait = now.wait_s(amount)

    def later(seconds: float) -> Usage:
        passed = elapsed_s + seconds
        if passed < 60:
            return usage(limit, passed, before, now.current)
        return usage(limit, min(passed - 60, 60), now.current, 0)

    assert later(wait).used + amount <= limit + 1e-3
    if wait > 0.01:
        assert later(wait - 0.01).used + amount > limit - 1e-3


async def test_taking_is_refused_once_the_limit_is_reached_and_takes_nothing_then() -> None:
    wall = Wall()
    minutes = Minutes(Counts(), wall)
    assert [(await minutes.take("a", 4, 10))[1] for _ in range(3)] == [True, True, False]
    assert (await minutes.usage("a", 10)).current == 8
    wall.now += 90
    assert (await minutes.usage("a", 10)).used == 4
    assert (await minutes.take("a", 6, 10))[1]


async def test_what_is_given_back_counts_in_the_minute_it_was_taken_in() -> None:
    wall = Wall()
    minutes = Minutes(Counts(), wall)
    taken, _ = await minutes.take("a", 10, 10)
    wall.now += 75
    await minutes.change("a", taken.minute, -6)
    assert (await minutes.usage("a", 10)).before == 4


class Watched(Counts):
    """Remembers what is added, and may look as if another replica had been quicker."""

    def __init__(self, *, behind: bool = False) -> None:
        super().__init__()
        self.added: list[int] = []
        self._behind = behind

    async def get(self, key: str) -> int:
        return 0 if self._behind else await super().get(key)

    async def add(self, key: str, amount: int, keep_s: int) -> int:
        self.added.append(amount)
        return await super().add(key, amount, keep_s)


async def test_what_another_took_between_look_and_taking_is_given_back() -> None:
    counts = Watched(behind=True)
    minutes = Minutes(counts, Wall())
    assert [(await minutes.take("a", 6, 10))[1] for _ in range(3)] == [True, False, False]
    assert counts.added == [6, 6, -6, 6, -6]


async def test_nothing_is_written_for_what_is_refused_or_given_back_too_late() -> None:
    counts, wall = Watched(), Wall()
    minutes = Minutes(counts, wall)
    taken, _ = await minutes.take("a", 10, 10)
    await minutes.take("a", 1, 10)
    wall.now += 200
    await minutes.change("a", taken.minute, -10)
    assert counts.added == [10]


async def test_what_is_given_back_too_late_changes_nothing() -> None:
    wall = Wall()
    minutes = Minutes(Counts(), wall)
    taken, _ = await minutes.take("a", 10, 10)
    wall.now += 200
    await minutes.change("a", taken.minute, -10)
    assert (await minutes.usage("a", 10)).used == 0
    assert (await minutes.take("a", 10, 10))[1]
    assert not (await minutes.take("a", 1, 10))[1]
