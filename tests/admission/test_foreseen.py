"""Who is refused because its first token would come too late."""

from __future__ import annotations

import pytest

from service.admission.load import Load
from service.admission.slot import Ticket
from service.errors import DeadlineExceeded, DeadlineUnreachable, Overloaded, ServiceError
from tests.admission.clock import breathe
from tests.admission.house import House, ended


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


async def test_where_predictions_were_too_early_less_is_promised() -> None:
    house = House(slots=1, slo_ttft_s=4.0)
    await house.teach(first_token_s=0.2, step_s=0.1, tokens=32)
    slot = await house.slot()
    trusting = house.ask()
    await breathe()
    assert not trusting.done()  # 3.4 s to wait
    await ended(trusting)
    for _ in range(4):
        house.admission.rates.misses.add(1.0)
    with pytest.raises(Overloaded):
        await house.ask()
    slot.release()
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
