"""What a request holds while the engine works for it, and what it waits with until then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from service.admission.clock import Timer
from service.admission.line import Waiter
from service.admission.load import Load, Prediction
from service.admission.run import Run


@dataclass(frozen=True, slots=True)
class Ticket:
    """What admission has to know of a request."""

    tenant: str
    load: Load
    priority: int = 0  # inside the tenant; lower goes first
    deadline_s: float | None = None  # the caller's, on the admission's clock


class Slot:
    """A place in the engine. Whoever holds it tells what is written, and releases it."""

    def __init__(self, run: Run, give_back: Callable[[], None], prediction: Prediction) -> None:
        self.prediction = prediction
        self.wrote = run.wrote  # not a method of its own: it is called for every delta
        self._run = run
        self._give_back: Callable[[], None] | None = give_back

    def release(self, complete: bool = False) -> None:
        """Give it back, `complete` if every answer came to its end. Never waits; harmless when repeated."""
        if self._give_back is None:
            return
        give_back, self._give_back = self._give_back, None
        self._run.end(complete)
        give_back()


@dataclass(eq=False, slots=True)
class Waiting(Waiter):
    """A request in the line, with what it waits for."""

    ticket: Ticket
    prediction: Prediction
    since_s: float
    slot: asyncio.Future[Slot]
    timer: Timer | None = None
