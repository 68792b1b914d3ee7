"""Whatever requests do, nothing stays held, and no rule is broken on the way."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.admission.slot import Slot
from service.errors import CapacityError, Draining
from tests.admission.clock import breathe
from tests.admission.house import House


class Crowd:
    """Requests in all states, and what may happen to them."""

    def __init__(self, **terms: Any) -> None:
        self.house = House(slots=6, kv_tokens=3000, max_waiting=12, max_wait_s=20, overcommit=1.5, **terms)
        self.asking: list[asyncio.Task[Slot]] = []
        self.running: list[Slot] = []
        self.asked = 0
        self.served = 0

    def ask(self, tenant: str, wish: dict[str, Any]) -> None:
        self.asked += 1
        self.asking.append(self.house.ask(tenant, **wish))

    async def look(self) -> None:
        """Let everybody act, and see what has come of it."""
        await breathe()
        still = []
        for task in self.asking:
            if not task.done():
                still.append(task)
            elif not task.cancelled() and task.exception() is None:
                self.running.append(task.result())
                self.served += 1
            elif not task.cancelled():
                assert isinstance(task.exception(), CapacityError | Draining), task.exception()
        self.asking = still

    def check(self) -> None:
        admission = self.house.admission
        assert admission.held == len(self.running)
        assert admission.waiting == len(self.asking) <= 12
        assert 0 <= admission.held_slots <= 6
        assert admission.reserved_tokens <= admission.capacity_tokens or admission.held == 1
        assert admission.rates.running >= admission.held
        assert not admission.waiting or admission.held

    async def leave(self) -> None:
        """Everybody goes home."""
        for task in self.asking:
            task.cancel()
        await self.look()
        while self.running:
            self.running.pop().release()
            await self.look()
        await self.look()
        assert not self.asking
        assert self.house.empty


def drawn_wish(chance: random.Random) -> dict[str, Any]:
    """What somebody may ask for."""
    return {
        "prompt": chance.choice((1, 10, 100, 800)),
        "output": chance.choice((1, 16, 64, 500)),
        "n": chance.choice((1, 1, 1, 1, 2, 4, 8)),
        "cached": chance.choice((None, 0, 1)),
        "priority": chance.choice((0, 0, 0, -1, 5)),
        "within_s": chance.choice((None, None, None, None, 0.0, 0.5, 3.0, 30.0)),
    }


async def step(crowd: Crowd, chance: random.Random) -> None:
    """Something happens; often several things in one moment, before anybody can react."""
    kind = chance.random()
    if kind < 0.35:
        for _ in range(chance.choice((1, 1, 1, 3))):
            crowd.ask(chance.choice("aaaabc"), drawn_wish(chance))
    elif kind < 0.6 and crowd.running:
        slot = crowd.running.pop(chance.randrange(len(crowd.running)))
        for _ in range(chance.choice((1, 2))):
            slot.release(complete=chance.random() < 0.7)
    elif kind < 0.75 and crowd.running:
        slot = chance.choice(crowd.running)
        slot.wrote(chance.choice((1, 1, 5, 40)))
    elif kind < 0.87 and crowd.asking:
        chance.choice(crowd.asking).cancel()
    if chance.random() < 0.5:
        await crowd.house.clock.go(chance.choice((0.0, 0.05, 0.3, 5.0)))
    if chance.random() < 0.8:
        await crowd.look()
        crowd.check()


@pytest.mark.parametrize("terms", [{}, {"slo_ttft_s": None}, {"shadow": True}], ids=str)
async def test_ten_thousand_requests_that_come_leave_fail_and_end_at_random_leave_nothing_held(
    terms: dict[str, Any],
) -> None:
    chance, crowd = random.Random(11), Crowd(**terms)
    while crowd.asked < 10_000:
        await step(crowd, chance)
    assert crowd.served > 1000
    await crowd.look()
    crowd.check()
    await crowd.leave()


class AdmissionMachine(RuleBasedStateMachine):
    """The same with the steps chosen so as to find a fault, and to tell it shortly."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.crowd = self.loop.run_until_complete(self._begin())

    async def _begin(self) -> Crowd:
        return Crowd()

    @rule(
        tenant=st.sampled_from("abc"),
        prompt=st.sampled_from((1, 100, 1500)),
        output=st.sampled_from((1, 100, 500)),
        n=st.sampled_from((1, 2, 8)),
        priority=st.integers(-1, 1),
        within_s=st.sampled_from((None, 0.5, 5.0)),
    )
    def ask(self, tenant: str, **wish: Any) -> None:
        async def act() -> None:
            self.crowd.ask(tenant, wish)

        self.loop.run_until_complete(act())

    @rule(at=st.integers(0, 9), complete=st.booleans())
    def release(self, at: int, complete: bool) -> None:
        if self.crowd.running:
            self.crowd.running.pop(at % len(self.crowd.running)).release(complete)

    @rule(at=st.integers(0, 9), tokens=st.integers(1, 40))
    def write(self, at: int, tokens: int) -> None:
        if self.crowd.running:
            self.crowd.running[at % len(self.crowd.running)].wrote(tokens)

    @rule(at=st.integers(0, 20))
    def cancel(self, at: int) -> None:
        if self.crowd.asking:
            self.crowd.asking[at % len(self.crowd.asking)].cancel()

    @rule(seconds=st.sampled_from((0.0, 0.1, 1.0, 15.0)))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(self.crowd.house.clock.go(seconds))

    @invariant()
    def nothing_is_lost(self) -> None:
        self.loop.run_until_complete(self.crowd.look())
        self.crowd.check()

    def teardown(self) -> None:
        self.loop.run_until_complete(self.crowd.leave())
        self.loop.close()


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
