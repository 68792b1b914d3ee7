"""Nobody is kept from the engine by others who ask for more."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import Overloaded
from tests.admission.clock import breathe
from tests.admission.house import House, ended


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
