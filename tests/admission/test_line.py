"""Whose turn it is."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.line import Line, Place, Waiter

numbers = count()


def waiter(tenant: str, priority: int = 0, share: float = 1.0) -> Waiter:
    """A request that wants one slot and ten tokens."""
    return Waiter(next(numbers), tenant, priority, Place(1, 10, share))


def line(*tenants: str) -> Line[Waiter]:
    """Requests of these tenants, in this order."""
    made: Line[Waiter] = Line()
    for tenant in tenants:
        made.join(waiter(tenant))
    return made


def serve(made: Line[Waiter]) -> Waiter:
    """Serve whose turn it is."""
    served = made.next()
    made.leave(served)
    made.serve(served.tenant, served.place.share)
    return served


def order(made: Line[Waiter]) -> str:
    """The tenants, as they are served."""
    return "".join(serve(made).tenant for _ in range(len(made)))


def test_tenants_take_turns_however_many_wait() -> None:
    assert order(line(*"aaaaabbc")) == "abcabaaa"


def test_a_newcomer_goes_before_all_later_turns_of_a_tenant_with_many() -> None:
    made = line(*"a" * 200)
    serve(made)
    made.join(waiter("b"))
    assert order(made)[:2] in ("ba", "ab")


def test_nobody_saves_up_turns_by_staying_away() -> None:
    made = line(*"a" * 10)
    for _ in range(5):
        serve(made)
    for _ in range(5):
        made.join(waiter("b"))
    assert order(made).startswith("ba" * 4) or order(made).startswith("ab" * 4)


def test_who_takes_more_of_the_engine_waits_longer_for_its_next_turn() -> None:
    made: Line[Waiter] = Line()
    for _ in range(12):
        made.join(waiter("large", share=0.3))
        made.join(waiter("small", share=0.1))
    served = [serve(made).tenant for _ in range(12)]
    assert served.count("small") == 9


def test_inside_a_tenant_priority_goes_first_then_age() -> None:
    made: Line[Waiter] = Line()
    waiters = [waiter("a", priority) for priority in (5, 0, 5, -1)]
    for one in waiters:
        made.join(one)
    assert [serve(made) for _ in range(4)] == [waiters[3], waiters[1], waiters[0], waiters[2]]


def test_priority_brings_a_tenant_no_turn_earlier() -> None:
    made = line("a", "b")
    made.join(waiter("c", priority=-100))
    assert order(made) == "abc"


def test_who_waits_most_is_known() -> None:
    made = line(*"abbbcc")
    assert made.longest() == "b"
    assert made.waiting("b") == 3
    last = made.last("b")
    made.leave(last)
    made.leave(made.last("b"))
    assert made.longest() == "c"


def drawn(seed: int) -> Line[Waiter]:
    """A line after some random comings, goings and turns."""
    chance, made = random.Random(seed), line()
    for _ in range(chance.randrange(60)):
        if made and chance.random() < 0.3:
            serve(made)
        elif made and chance.random() < 0.2:
            made.leave(chance.choice(made.all()))
        else:
            made.join(waiter(chance.choice("abcd"), chance.randrange(2)))
    return made


@given(st.integers(0, 10**6), st.sampled_from("abcde"), st.integers(-1, 2))
def test_how_many_go_before_a_newcomer_is_known_to_within_a_round(
    seed: int, tenant: str, priority: int
) -> None:
    made = drawn(seed)
    said = made.ahead(tenant, priority)
    newcomer = waiter(tenant, priority)
    made.join(newcomer)
    before = 0
    while serve(made) is not newcomer:
        before += 1
    assert abs(said - before) <= 4  # tenants


@given(st.integers(0, 10**6))
def test_counts_are_those_of_who_waits(seed: int) -> None:
    made = drawn(seed)
    waiting = made.all()
    assert len(made) == len(waiting)
    assert made.slots == len(waiting)
    assert made.tokens == 10 * len(waiting)
    for tenant in "abcd":
        assert made.waiting(tenant) == sum(1 for one in waiting if one.tenant == tenant)
    order(made)
    assert len(made) == made.slots == made.tokens == 0


@pytest.mark.parametrize("tenants", ["a", "ab", "aab", "abcabcabc"])
def test_with_one_waiting_each_the_count_ahead_is_exact_for_a_stranger(tenants: str) -> None:
    assert line(*tenants).ahead("z", 0) == len(set(tenants))
