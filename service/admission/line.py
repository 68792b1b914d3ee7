"""Who waits for a slot, and whose turn it is.

Tenants take turns: each turn moves a tenant back by what it took of the engine, so that whoever has
had least goes next, however many of anybody's requests wait. Inside a tenant the lower priority
number goes first, then the earlier request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Place:
    """What a request takes of the engine: slots, tokens, and the larger of its two shares."""

    slots: int
    tokens: int
    share: float


@dataclass(eq=False, slots=True)
class Waiter:
    """One waiting request."""

    number: int
    tenant: str
    priority: int
    place: Place


W = TypeVar("W", bound=Waiter)


class Line(Generic[W]):
    """All waiting requests."""

    def __init__(self) -> None:
        self.slots = 0  # all of them together
        self.tokens = 0
        self._size = 0
        self._queues: dict[str, list[tuple[int, int, W]]] = {}
        self._turns: list[tuple[float, int, str]] = []  # of tenants with somebody waiting
        self._turn: dict[str, tuple[float, int, str]] = {}
        self._served_to: dict[str, float] = {}  # where each tenant's next turn may begin
        self._now = 0.0  # where the last turn began
        self._ranks: list[dict[str, None]] = []  # tenants with at least 1, 2, 3 … waiting

    def __len__(self) -> int:
        return self._size

    def join(self, waiter: W) -> None:
        """Wait."""
        queue = self._queues.setdefault(waiter.tenant, [])
        insort(queue, (waiter.priority, waiter.number, waiter))
        if len(queue) == 1:
            self._set_turn(waiter.tenant, waiter.number)
        if len(queue) > len(self._ranks):
            self._ranks.append({})
        self._ranks[len(queue) - 1][waiter.tenant] = None
        self._count(waiter, 1)

    def leave(self, waiter: W) -> None:
        """Wait no longer, whether served or not."""
        queue = self._queues[waiter.tenant]
        del queue[bisect_left(queue, (waiter.priority, waiter.number))]
        del self._ranks[len(queue)][waiter.tenant]
        if not self._ranks[-1]:
            self._ranks.pop()
        if not queue:
            del self._queues[waiter.tenant]
            self._end_turn(waiter.tenant)
        self._count(waiter, -1)

    def next(self) -> W:
        """Whose turn it is."""
        return self._queues[self._turns[0][2]][0][2]

    def serve(self, tenant: str, share: float) -> None:
        """A tenant takes so much of the engine, whether it waited or not."""
        begin = max(self._now, self._served_to.get(tenant, 0.0))
        self._now = begin
        self._served_to[tenant] = begin + share
        if tenant in self._turn:
            number = self._turn[tenant][1]
            self._end_turn(tenant)
            self._set_turn(tenant, number)

    def ahead(self, tenant: str, priority: int) -> int:
        """About how many of those waiting go before a newcomer."""
        queue = self._queues.get(tenant, [])
        own = bisect_left(queue, (priority + 1,))
        begin = max(self._now, self._served_to.get(tenant, 0.0))
        others = bisect_right(self._turns, (begin, 1 << 62)) - (
            bool(queue) and self._turn[tenant][0] <= begin
        )
        later_rounds = sum(map(len, self._ranks[1 : own + 1])) - max(0, min(own, len(queue) - 1))
        return own + others + later_rounds

    def longest(self) -> str:
        """A tenant with most waiting."""
        return next(iter(self._ranks[-1]))

    def waiting(self, tenant: str) -> int:
        """How many of a tenant's requests wait."""
        return len(self._queues.get(tenant, ()))

    def last(self, tenant: str) -> W:
        """Which of a tenant's waiting requests would be served last."""
        return self._queues[tenant][-1][2]

    def all(self) -> list[W]:
        """Everybody."""
        return [waiter for queue in self._queues.values() for _, _, waiter in queue]

    def _count(self, waiter: W, sign: int) -> None:
        self._size += sign
        self.slots += sign * waiter.place.slots
        self.tokens += sign * waiter.place.tokens

    def _set_turn(self, tenant: str, number: int) -> None:
        turn = (max(self._now, self._served_to.get(tenant, 0.0)), number, tenant)
        self._turn[tenant] = turn
        insort(self._turns, turn)

    def _end_turn(self, tenant: str) -> None:
        del self._turns[bisect_left(self._turns, self._turn.pop(tenant))]
