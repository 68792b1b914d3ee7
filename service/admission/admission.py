"""The one place that decides who goes to the engine now, who waits, and who is told to come later.

A request takes a slot for each of its n answers, and P + n·M tokens of the key-value cache. If both
are free and nobody waits, it goes at once. Else it waits, fair between tenants, unless it can be
foreseen that it would wait in vain: then it is refused at once, and told when to come back.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from service.admission.clock import Clock, LoopClock
from service.admission.line import Line, Place
from service.admission.load import Load, Prediction
from service.admission.rates import Rates
from service.admission.refusals import draining, no_room, outwaited, past_deadline, too_late
from service.admission.run import Run
from service.admission.slot import Slot, Ticket, Waiting
from service.errors import ServiceError

MOST_OVERCOMMIT = 64.0
FILL = 0.8  # of the cache by what answers are expected to use: some will use more
RECHECK_S = 10.0  # how long a prediction is trusted that nothing has tested
RECENT = 32  # requests of a tenant
SHORTEST_LINE, LINE_PER_SLOT = 64, 4  # requests that may wait, where no setting says how many


@dataclass(frozen=True, slots=True)
class Terms:
    """What the operator lays down."""

    max_waiting: int | None = None  # requests; None: see `Admission.max_waiting`
    max_wait_s: float = 30.0
    slo_ttft_s: float | None = 2.0  # None: no promise
    shadow: bool = False  # predictions refuse nobody and are only counted
    overcommit: float | None = None  # of tokens; None: as far as answers stay below what they reserve


class Admission:
    """Slots, and the line of those who wait for one. Everything happens on the event loop."""

    def __init__(self, terms: Terms, clock: Clock | None = None) -> None:
        self.terms = terms
        self.clock = clock or LoopClock()
        self.rates = Rates(self.clock)
        self.slots = 0
        self.kv_tokens = 0
        self.held = 0  # requests
        self.held_slots = 0
        self.reserved_tokens = 0
        self.refused_in_shadow: Counter[str] = Counter()  # by error code
        self._line: Line[Waiting] = Line()
        self._numbers = 0
        self._refused_share: dict[str, float] = {}  # of each tenant's recent requests
        self._draining = False
        self._tested_s = -math.inf

    def open(self, slots: int, kv_tokens: int) -> None:
        """What the engine has: answers it runs at once, tokens its cache holds (0: it does not tell)."""
        self.slots = slots
        self.kv_tokens = kv_tokens
        self._serve()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._line)

    @property
    def max_waiting(self) -> int:
        """Requests that may wait. Who would wait too long is refused by prediction; this bounds memory.

        A line as short as the engine is wide would refuse a burst that a quick model serves in a moment.
        """
        if self.terms.max_waiting is not None:
            return self.terms.max_waiting
        return max(SHORTEST_LINE, LINE_PER_SLOT * self.slots)

    @property
    def overcommit(self) -> float:
        """How many times the cache may be reserved. Few answers become as long as they may."""
        if self.terms.overcommit is not None:
            return self.terms.overcommit
        share = self.rates.filled_share
        return min(MOST_OVERCOMMIT, max(1.0, FILL / share.at(0.0))) if share.known else 1.0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that may be reserved; 0: no limit is known."""
        return int(self.kv_tokens * self.overcommit)

    async def admit(self, ticket: Ticket) -> Slot:
        """A slot, once there is one. Whoever gets it releases it.

        Raises:
            Overloaded, DeadlineUnreachable, DeadlineExceeded, Draining: nothing is held.
        """
        if self._draining:
            raise draining()
        place = self._place(ticket.load)
        prediction = self.predict(ticket)
        self._refuse_in_vain(ticket, prediction)
        if not self._line and self._fits(place):
            self._note(ticket.tenant, refused=False)
            return self._grant(ticket, place, prediction, self.clock.now())
        waiting = self._join(ticket, place, prediction)
        self._serve()
        try:
            return await waiting.slot
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def predict(self, ticket: Ticket) -> Prediction:
        """What a request would have to expect that came now."""
        return self.rates.predict(ticket.load, self._releases(ticket))

    def drain(self) -> None:
        """Refuse who waits and who comes; who holds a slot keeps it."""
        self._draining = True
        self.dismiss(draining)

    def dismiss(self, why: Callable[[], ServiceError]) -> None:
        """Refuse everybody who waits now."""
        for waiting in self._line.all():
            self._refuse(waiting, why())

    def _place(self, load: Load) -> Place:
        """What a request takes; more answers than there are slots take all of them."""
        slots = min(load.n, max(1, self.slots))
        share = slots / max(1, self.slots)
        if self.kv_tokens:
            share = max(share, load.tokens / self.kv_tokens)
        return Place(slots, load.tokens, share)

    def _fits(self, place: Place) -> bool:
        """Whether it can go now. Alone, every request can: the budget has seen to it."""
        if not self.held:
            return self.slots > 0
        if self.held_slots + place.slots > self.slots:
            return False
        return not self.kv_tokens or self.reserved_tokens + place.tokens <= self.capacity_tokens

    def _releases(self, ticket: Ticket) -> int:
        """How many running requests must end before this one can begin, about."""
        if not self.held:
            return 0
        place, line = self._place(ticket.load), self._line
        ahead = line.ahead(ticket.tenant, ticket.priority) / len(line) if line else 0.0
        slots = ahead * line.slots + place.slots + self.held_slots - self.slots
        releases = slots * self.held / self.held_slots
        if self.kv_tokens:
            tokens = ahead * line.tokens + place.tokens + self.reserved_tokens - self.capacity_tokens
            releases = max(releases, tokens * self.held / self.reserved_tokens)
        return max(0, math.ceil(releases))

    def _refuse_in_vain(self, ticket: Ticket, prediction: Prediction) -> None:
        now = self.clock.now()
        if ticket.deadline_s is not None and ticket.deadline_s <= now:
            raise past_deadline()
        left = None if ticket.deadline_s is None else ticket.deadline_s - now
        refusal = too_late(prediction, left, self._bearable_s(ticket.tenant))
        if refusal is None:
            return
        if self.terms.shadow:
            self.refused_in_shadow[refusal.code] += 1
        elif self.held or now - self._tested_s < RECHECK_S:
            self._note(ticket.tenant, refused=True)
            raise refusal
        # Else nothing runs that could prove the prediction wrong: this request does.

    def _bearable_s(self, tenant: str) -> float | None:
        """The longest wait for others that is taken on.

        The promise, where little is refused. The more of a tenant's requests are refused, the surer
        another one comes for every slot that becomes free: a long line would keep the engine no
        busier, and would break the promise whenever a prediction is a little wrong.
        """
        if self.terms.slo_ttft_s is None:
            return None
        return self.terms.slo_ttft_s * (1 - self._refused_share.get(tenant, 0.0) / 2)

    def _note(self, tenant: str, *, refused: bool) -> None:
        share = self._refused_share.get(tenant, 0.0)
        self._refused_share[tenant] = share + (refused - share) / RECENT

    def _join(self, ticket: Ticket, place: Place, prediction: Prediction) -> Waiting:
        if len(self._line) >= self.max_waiting:
            self._make_room(ticket.tenant, prediction)
        self._note(ticket.tenant, refused=False)
        self._numbers += 1
        now, future = self.clock.now(), asyncio.get_running_loop().create_future()
        waiting = Waiting(
            self._numbers, ticket.tenant, ticket.priority, place, ticket, prediction, now, future
        )
        left = math.inf if ticket.deadline_s is None else ticket.deadline_s - now
        waiting.timer = self.clock.call_later(
            min(left, self.terms.max_wait_s), lambda: self._give_up(waiting)
        )
        self._line.join(waiting)
        return waiting

    def _make_room(self, tenant: str, prediction: Prediction) -> None:
        """The line is full: the newcomer is refused, unless another tenant has more in it by two."""
        longest = self._line.longest() if self._line else tenant
        if self._line.waiting(longest) <= self._line.waiting(tenant) + 1:
            self._note(tenant, refused=True)
            raise no_room(len(self._line), prediction, self.terms.slo_ttft_s)
        last = self._line.last(longest)
        self._refuse(last, no_room(len(self._line), prediction, self.terms.slo_ttft_s))

    def _serve(self) -> None:
        """Grant slots in turn while the next one fits. Nobody overtakes: what is large would never go."""
        while self._line:
            waiting = self._line.next()
            if waiting.slot.done():  # its caller has left and has not been here yet
                self._remove(waiting)
            elif self._fits(waiting.place):
                self._remove(waiting)
                slot = self._grant(waiting.ticket, waiting.place, waiting.prediction, waiting.since_s)
                waiting.slot.set_result(slot)
            else:
                return

    def _grant(self, ticket: Ticket, place: Place, prediction: Prediction, arrived_s: float) -> Slot:
        self._numbers += 1
        self.held += 1
        self.held_slots += place.slots
        self.reserved_tokens += place.tokens
        self._tested_s = self.clock.now()
        self._line.serve(ticket.tenant, place.share)
        run = Run(self._numbers, ticket.load, self.rates, prediction, arrived_s)
        return Slot(run, lambda: self._take_back(place), prediction)

    def _take_back(self, place: Place) -> None:
        self.held -= 1
        self.held_slots -= place.slots
        self.reserved_tokens -= place.tokens
        self._tested_s = self.clock.now()
        self._serve()

    def _give_up(self, waiting: Waiting) -> None:
        """Its time is over."""
        ticket = waiting.ticket
        if ticket.deadline_s is not None and ticket.deadline_s <= self.clock.now():
            self._refuse(waiting, past_deadline())
        else:
            self._refuse(waiting, outwaited(self.terms.max_wait_s, self.predict(ticket)))

    def _refuse(self, waiting: Waiting, why: ServiceError) -> None:
        self._remove(waiting)
        if not waiting.slot.done():
            waiting.slot.set_exception(why)

    def _abandon(self, waiting: Waiting) -> None:
        """The caller has left. What it was given in the same moment goes back."""
        self._remove(waiting)
        slot = waiting.slot
        if slot.done() and not slot.cancelled() and slot.exception() is None:
            slot.result().release()
        self._serve()

    def _remove(self, waiting: Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
            waiting.timer = None
            self._line.leave(waiting)
