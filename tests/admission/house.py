"""An admission with a clock in the test's hand, and requests to bring to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from service.admission.admission import Admission, Terms
from service.admission.load import Load
from service.admission.slot import Slot, Ticket
from tests.admission.clock import HandClock, breathe


class House:
    """The admission, its clock, and what has been asked of it."""

    def __init__(self, slots: int = 4, kv_tokens: int = 0, **terms: Any) -> None:
        self.clock = HandClock()
        self.admission = Admission(replace(Terms(max_waiting=100), **terms), self.clock)
        self.admission.open(slots, kv_tokens)

    def ask(
        self,
        tenant: str = "a",
        *,
        prompt: int = 40,
        output: int = 32,
        n: int = 1,
        cached: int | None = 0,
        priority: int = 0,
        within_s: float | None = None,
    ) -> asyncio.Task[Slot]:
        """A request; `within_s` is its caller's deadline."""
        deadline = None if within_s is None else self.clock.now() + within_s
        ticket = Ticket(tenant, Load(prompt, output, n, cached), priority, deadline)
        return asyncio.ensure_future(self.admission.admit(ticket))

    async def slot(self, tenant: str = "a", **wish: Any) -> Slot:
        """A request that is served at once."""
        task = self.ask(tenant, **wish)
        await breathe()
        assert task.done()
        return task.result()

    async def teach(self, *, first_token_s: float = 0.2, step_s: float = 0.1, tokens: int = 32) -> None:
        """Serve some requests one by one at this speed, so that it is known."""
        for prompt in (40, 40, 40, 40):
            slot = await self.slot("teacher", prompt=prompt, output=tokens)
            await self.clock.go(first_token_s)
            slot.wrote(1)
            for _ in range(tokens - 1):
                await self.clock.go(step_s)
                slot.wrote(1)
            slot.release(complete=True)

    @property
    def empty(self) -> bool:
        """Whether nothing is held, nobody waits, and nothing is left behind."""
        admission = self.admission
        rates = admission.rates
        counts = (admission.held, admission.held_slots, admission.reserved_tokens, admission.waiting)
        return not (any(counts) or rates.running or rates.to_read or rates.horizon or self.clock.alarms)


async def ended(*tasks: asyncio.Task[Slot]) -> None:
    """Have these leave, and see them gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
