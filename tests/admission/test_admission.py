"""Who goes now and who waits, and that nothing stays behind."""

from __future__ import annotations

import asyncio

import pytest

from service.admission.admission import Admission, Terms
from service.admission.load import Load
from service.admission.slot import Ticket
from service.errors import Draining, Overloaded
from tests.admission.clock import breathe
from tests.admission.house import House, ended


async def test_requests_go_at_once_while_there_are_slots_and_wait_then() -> None:
    house = House(slots=2)
    slots = [await house.slot() for _ in range(2)]
    waiting = house.ask()
    await breathe()
    assert (house.admission.held, house.admission.waiting) == (2, 1)
    slots[0].release()
    assert (house.admission.held, house.admission.waiting) == (2, 0)
    (await waiting).release()
    slots[1].release()
    assert house.empty


async def test_a_slot_is_given_back_once_however_often_it_is_released() -> None:
    house = House(slots=2)
    first, second = await house.slot(), await house.slot()
    for _ in range(3):
        first.release(complete=True)
    assert house.admission.held == 1
    second.release()
    assert house.empty


async def test_n_answers_take_n_slots() -> None:
    house = House(slots=4)
    large = await house.slot(n=3)
    assert house.admission.held_slots == 3
    waiting = house.ask(n=2)
    await breathe()
    assert not waiting.done()
    large.release()
    (await waiting).release()
    assert house.empty


async def test_more_answers_than_slots_take_all_of_them_and_go_alone() -> None:
    house = House(slots=4)
    small = await house.slot()
    large = house.ask(n=8)
    await breathe()
    assert not large.done()
    small.release()
    slot = await large
    assert house.admission.held_slots == 4
    slot.release()
    assert house.empty


async def test_tokens_are_reserved_for_the_prompt_and_all_answers() -> None:
    house = House(slots=8, kv_tokens=1000, overcommit=1.0)
    first = await house.slot(prompt=100, output=200, n=3)
    assert house.admission.reserved_tokens == 700
    waiting = house.ask(prompt=200, output=101)
    await breathe()
    assert not waiting.done()
    first.release()
    (await waiting).release()
    assert house.empty


async def test_a_request_larger_than_the_reservable_cache_goes_alone() -> None:
    house = House(slots=8, kv_tokens=1000, overcommit=1.0)
    (await house.slot(prompt=1500, output=1)).release()
    assert house.empty


async def test_the_cache_is_given_away_as_often_as_answers_stay_below_what_they_reserve() -> None:
    house = House(slots=64, kv_tokens=10_000)
    assert house.admission.capacity_tokens == 10_000
    for _ in range(20):
        slot = await house.slot(prompt=100, output=1900)
        slot.wrote(100)
        slot.release(complete=True)
    assert house.admission.overcommit == pytest.approx(8, rel=0.05)
    assert House(kv_tokens=10_000, overcommit=1.5).admission.capacity_tokens == 15_000


async def test_the_line_has_an_end() -> None:
    house = House(slots=1, max_waiting=2)
    slot = await house.slot()
    waiting = [house.ask() for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests wait") as refused:
        await house.ask()
    assert refused.value.status == 429
    assert isinstance(refused.value.retry_after_s, int)
    slot.release()
    for task in waiting:
        (await task).release()
    assert house.empty


async def test_unless_told_otherwise_four_times_as_many_may_wait_as_can_run_and_at_least_64() -> None:
    assert House(slots=7, max_waiting=None).admission.max_waiting == 64
    assert House(slots=70, max_waiting=None).admission.max_waiting == 280
    assert House(slots=7, max_waiting=0).admission.max_waiting == 0


async def test_without_waiting_a_full_service_refuses_at_once() -> None:
    house = House(slots=1, max_waiting=0)
    slot = await house.slot()
    with pytest.raises(Overloaded):
        await house.ask()
    slot.release()
    assert house.empty


async def test_nobody_waits_longer_than_allowed_and_is_told_when_to_come_back() -> None:
    house = House(slots=1, max_wait_s=10, slo_ttft_s=None)
    await house.teach(step_s=1)
    slot = await house.slot()
    waiting = house.ask()
    await house.clock.go(9.9)
    assert not waiting.done()
    await house.clock.go(0.2)
    with pytest.raises(Overloaded, match=r"10\.0 s") as refused:
        await waiting
    assert (refused.value.retry_after_s or 0) >= 1
    slot.release()
    assert house.empty


async def test_who_leaves_while_waiting_leaves_nothing_behind() -> None:
    house = House(slots=1)
    slot = await house.slot()
    first, second = house.ask(), house.ask()
    await breathe()
    await ended(first)
    assert house.admission.waiting == 1
    slot.release()
    (await second).release()
    assert house.empty


async def test_who_leaves_in_the_moment_it_is_served_gives_the_slot_to_the_next() -> None:
    house = House(slots=1)
    slot = await house.slot()
    leaver, stayer = house.ask(), house.ask()
    await breathe()
    slot.release()  # the leaver has its slot now and has not seen it
    await ended(leaver)
    (await stayer).release()
    assert house.empty


async def test_who_has_left_in_the_moment_a_slot_becomes_free_is_passed_over() -> None:
    house = House(slots=1)
    slot = await house.slot()
    leaver, stayer = house.ask(), house.ask()
    await breathe()
    leaver.cancel()
    slot.release()
    (await stayer).release()
    await ended(leaver)
    assert house.empty


async def test_who_leaves_in_the_moment_it_is_refused_leaves_no_error_unseen() -> None:
    house = House(slots=1, max_wait_s=5)
    slot = await house.slot()
    waiting = house.ask()
    await breathe()
    house.admission.drain()
    await ended(waiting)
    assert waiting.cancelled()
    slot.release()
    assert house.empty


async def test_drain_refuses_who_waits_and_who_comes_and_leaves_who_runs() -> None:
    house = House(slots=1)
    slot = await house.slot()
    waiting = house.ask()
    await breathe()
    house.admission.drain()
    for task in (waiting, house.ask()):
        with pytest.raises(Draining) as refused:
            await task
        assert refused.value.status == 503
        assert refused.value.retry_after_s
    assert house.admission.held == 1
    slot.release()
    assert house.empty


async def test_before_the_engine_is_known_requests_wait_for_it() -> None:
    house = House(slots=0, max_waiting=5)
    waiting = house.ask()
    await breathe()
    assert not waiting.done()
    house.admission.open(2, 0)
    (await waiting).release()
    assert house.empty


async def test_waiting_takes_no_task_of_its_own() -> None:
    house = House(slots=1, max_waiting=50, slo_ttft_s=None)
    slot = await house.slot()
    before = len(asyncio.all_tasks())
    waiting = [house.ask() for _ in range(50)]
    await breathe()
    assert len(asyncio.all_tasks()) == before + 50  # the callers' own
    await ended(*waiting)
    slot.release()
    assert house.empty


async def test_on_the_machine_s_own_clock_waiting_ends_too() -> None:
    admission = Admission(Terms(max_wait_s=0.01))
    admission.open(1, 0)
    slot = await admission.admit(Ticket("a", Load(1, 1)))
    with pytest.raises(Overloaded):
        await admission.admit(Ticket("a", Load(1, 1)))
    slot.release()
    assert (admission.held, admission.waiting) == (0, 0)
