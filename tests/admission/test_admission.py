"""Who goes now, who waits, who is refused, and that nothing stays behind."""

from __future__ import annotations

import asyncio

import pytest

from service.admission.admission import Admission, Terms
from service.admission.load import Load
from service.admission.slot import Ticket
from service.errors import DeadlineExceeded, DeadlineUnreachable, Draining, Overloaded, ServiceError
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


async def test_nobody_overtakes_a_large_request_whose_turn_it_is() -> None:
    house = House(slots=8, kv_tokens=1000, overcommit=1.0)
    running = await house.slot(prompt=500, output=100)
    large = house.ask("a", prompt=700, output=100)
    small = house.ask("a", prompt=10, output=10)
    await breathe()
    assert not large.done() and not small.done()
    running.release()
    (await large).release()
    (await small).release()
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


async def test_unless_told_otherwise_as_many_may_wait_as_can_run() -> None:
    assert House(slots=7, max_waiting=None).admission.max_waiting == 7
    assert House(slots=7, max_waiting=0).admission.max_waiting == 0


async def test_without_waiting_a_full_service_refuses_at_once() -> None:
    house = House(slots=1, max_waiting=0)
    slot = await house.slot()
    with pytest.raises(Overloaded):
        await house.ask()
    slot.release()
    assert house.empty


async def test_a_full_line_makes_room_for_a_tenant_with_less_in_it() -> None:
    house = House(slots=1, max_waiting=4)
    slot = await house.slot()
    many = [house.ask("many") for _ in range(4)]
    one = house.ask("one")
    await breathe()
    with pytest.raises(Overloaded):
        await many[3]
    assert house.admission.waiting == 4
    with pytest.raises(Overloaded):
        await house.ask("many")
    await ended(one, *many[:3])
    slot.release()
    assert house.empty


async def test_a_full_line_makes_no_room_where_that_would_only_swap_who_waits_more() -> None:
    house = House(slots=1, max_waiting=3)
    slot = await house.slot()
    waiting = [house.ask(tenant) for tenant in "aab"]
    with pytest.raises(Overloaded):
        await house.ask("b")
    assert not any(task.done() for task in waiting)
    await ended(*waiting)
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


async def test_a_tenant_with_200_waiting_delays_another_s_request_by_no_more_than_one_service_time() -> None:
    house = House(slots=4, max_waiting=500, slo_ttft_s=None, max_wait_s=1e6)
    running = [await house.slot("many") for _ in range(4)]
    many = [house.ask("many") for _ in range(200)]
    await breathe()
    other = house.ask("other")
    await breathe()
    for slot in running:
        slot.release(complete=True)
    await breathe()
    assert other.done()
    other.result().release()
    for task in many:
        (await task).release()
    assert house.empty


async def test_two_tenants_that_ask_alike_are_served_alike() -> None:
    house = House(slots=1, max_waiting=500, slo_ttft_s=None, max_wait_s=1e6)
    served: list[str] = []

    async def one(tenant: str) -> None:
        slot = await house.ask(tenant)
        served.append(tenant)
        await breathe()
        slot.release()

    await asyncio.gather(*(one("many") for _ in range(90)), *(one("few") for _ in range(10)))
    assert served[:20].count("few") in (9, 10)
    assert len(served) == 100
    assert house.empty


async def test_inside_a_tenant_priority_decides() -> None:
    house = House(slots=1)
    slot = await house.slot()
    late, urgent = house.ask(priority=0), house.ask(priority=-5)
    await breathe()
    slot.release()
    await breathe()
    assert urgent.done() and not late.done()
    urgent.result().release()
    (await late).release()
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


# What is foreseen


async def test_a_first_token_after_the_deadline_is_refused_at_once_with_the_time_to_come_back() -> None:
    house = House(slots=1)
    await house.teach(first_token_s=0.2, step_s=0.1, tokens=32)
    slot = await house.slot()
    with pytest.raises(DeadlineUnreachable) as refused:
        await house.ask(within_s=2.0)
    assert refused.value.status == 429
    assert refused.value.retry_after_s in (2, 3)
    patient = house.ask(within_s=8.0)
    await breathe()
    assert not patient.done()
    await ended(patient)
    slot.release()
    assert house.empty


async def test_a_deadline_that_passes_while_waiting_ends_the_wait() -> None:
    house = House(slots=1)
    slot = await house.slot()
    waiting = house.ask(within_s=3.0)
    await house.clock.go(2.9)
    assert not waiting.done()
    await house.clock.go(0.2)
    with pytest.raises(DeadlineExceeded) as refused:
        await waiting
    assert refused.value.status == 504
    slot.release()
    assert house.empty


async def test_a_deadline_that_has_passed_already_is_told_so() -> None:
    house = House()
    with pytest.raises(DeadlineExceeded):
        await house.ask(within_s=0.0)
    assert house.empty


async def test_a_wait_beyond_the_promise_is_refused_and_one_within_is_taken_on() -> None:
    house = House(slots=1, slo_ttft_s=2.0)
    await house.teach(first_token_s=0.2, step_s=0.1, tokens=32)
    slot = await house.slot()
    with pytest.raises(Overloaded, match=r"2\.0 s is the most") as refused:
        await house.ask()
    assert refused.value.retry_after_s in (1, 2)
    await house.clock.go(0.2)
    slot.wrote(1)
    for _ in range(20):
        await house.clock.go(0.1)
        slot.wrote(1)
    near_its_end = house.ask()
    await breathe()
    assert not near_its_end.done()
    slot.release(complete=True)
    (await near_its_end).release()
    assert house.empty


async def test_a_lone_long_prompt_is_never_refused_for_being_long() -> None:
    house = House(slots=4, slo_ttft_s=0.1)
    for prompt in (100, 4000, 1000, 2000) * 3:
        slot = await house.slot(prompt=prompt, output=4)
        await house.clock.go(0.01 * prompt)
        slot.wrote(1)
        slot.release(complete=True)
    assert house.admission.rates.prefill.at(8000, 1) > 50
    (await house.slot(prompt=8000)).release()
    assert house.empty


async def test_a_prompt_that_must_wait_for_others_being_read_is_refused_though_slots_are_free() -> None:
    house = House(slots=64, slo_ttft_s=2.0)
    for prompt in (100, 4000, 1000, 2000) * 5:
        slot = await house.slot(prompt=prompt, output=4)
        await house.clock.go(0.05 + 0.001 * prompt)
        slot.wrote(1)
        slot.release(complete=True)
    taken = []
    with pytest.raises(Overloaded):
        for _ in range(10):
            taken.append(await house.ask(prompt=1000))
    assert 2 <= len(taken) <= 3
    for slot in taken:
        slot.release()
    assert house.empty


async def test_while_nothing_is_known_nobody_is_refused_for_what_might_be() -> None:
    house = House(slots=1, slo_ttft_s=0.001)
    slot = await house.slot()
    waiting = house.ask(within_s=0.5), house.ask()
    await breathe()
    assert not any(task.done() for task in waiting)
    await ended(*waiting)
    slot.release()
    assert house.empty


async def test_in_shadow_mode_predictions_are_counted_and_refuse_nobody() -> None:
    house = House(slots=1, shadow=True)
    await house.teach()
    slot = await house.slot()
    waiting = house.ask(within_s=1.0), house.ask()
    await breathe()
    assert not any(task.done() for task in waiting)
    assert house.admission.refused_in_shadow == {"deadline_unreachable": 1, "overloaded": 1}
    await ended(*waiting)
    slot.release()
    assert house.empty


async def test_without_a_promise_only_the_length_of_the_line_counts() -> None:
    house = House(slots=1, max_waiting=1, slo_ttft_s=None)
    await house.teach(step_s=10)
    slot = await house.slot()
    waiting = house.ask()
    with pytest.raises(Overloaded, match="no more may"):
        await house.ask()
    await ended(waiting)
    slot.release()
    assert house.empty


async def test_a_prediction_that_nothing_tests_any_more_does_not_refuse_for_ever() -> None:
    house = House(slots=1)
    slot = await house.slot()
    await house.clock.go(60)  # the machine was suspended
    slot.wrote(1)
    slot.release(complete=True)
    with pytest.raises(DeadlineUnreachable):
        await house.ask(within_s=2.0)
    await house.clock.go(30)
    slot = await house.slot(within_s=2.0)
    await house.clock.go(0.1)
    slot.wrote(1)
    slot.release(complete=True)
    assert house.admission.rates.prefill.at(40, 1) < 60
    assert house.empty


async def test_the_more_is_refused_the_shorter_the_line_that_is_taken_on() -> None:
    house = House(slots=1, slo_ttft_s=4.0)
    await house.teach(first_token_s=0.2, step_s=0.1, tokens=32)
    slot = await house.slot()
    first = house.ask()
    await breathe()
    assert not first.done()  # 3.4 s to wait
    await ended(first)
    running = [first, *(house.ask() for _ in range(60))]
    await breathe()
    assert sum(task.done() for task in running) >= 58
    kept = [task for task in running if not task.done()]
    await ended(*kept)
    with pytest.raises(Overloaded):
        await house.ask()
    stranger = house.ask("stranger")
    await breathe()
    assert not stranger.done()
    await ended(stranger)
    slot.release()
    for task in running:
        if not task.cancelled():
            assert isinstance(task.exception(), ServiceError)
    assert house.empty


async def test_what_is_foreseen_can_be_asked_without_taking_anything() -> None:
    house = House(slots=1)
    ticket = Ticket("a", Load(40, 32))
    assert house.admission.predict(ticket).first_token_s is None
    await house.teach()
    assert house.admission.predict(ticket).first_token_s == pytest.approx(0.2, rel=0.1)
    slot = await house.slot()
    assert house.admission.predict(ticket).first_token_s == pytest.approx(3.6, rel=0.2)
    slot.release()
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
