"""Which replica a request goes to: one that has its beginning in the cache, unless that has too much to do.

Replicas are known here by what was sent to them. Of those that were sent the longest part of a request, the
one with the least to do is taken, while its load is not far above the mean ("consistent hashing with bounded
loads" sets the same bound). A beginning that nobody knows goes to whoever has the least to do, and one that
is asked for more than a replica can take is soon known by several.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

Replica = TypeVar("Replica", bound=Hashable)

MOST_MARKS = 200_000  # some 40 MB
BOUND = 1.25  # times the mean load
SLACK = 2  # requests that a replica may always have
MEMORY = 32  # requests for each replica that count as recent


class Placement(Generic[Replica]):
    """What each replica was sent, and how much of late."""

    def __init__(self, *, bound: float = BOUND, slack: int = SLACK, most_marks: int = MOST_MARKS) -> None:
        self._bound = bound
        self._slack = slack
        self._most_marks = most_marks
        self._holders: OrderedDict[str, set[Replica]] = OrderedDict()
        self._recent: dict[Replica, float] = {}

    def place(self, marks: Sequence[str], loads: Mapping[Replica, int]) -> list[Replica]:
        """All replicas of `loads`, the one to try first at the front; it counts as chosen."""
        self._recent = {replica: self._recent.get(replica, 0.0) for replica in loads}
        by_load = sorted(loads, key=lambda replica: (loads[replica], self._recent[replica]))
        chosen = self._holder(marks, loads, by_load) or by_load[0]
        self._remember(marks, chosen)
        return [chosen, *(replica for replica in by_load if replica != chosen)]

    def _holder(
        self, marks: Sequence[str], loads: Mapping[Replica, int], by_load: Sequence[Replica]
    ) -> Replica | None:
        mean = (sum(loads.values()) + 1) / len(loads)
        most = max(self._slack, self._bound * mean)
        free = [replica for replica in by_load if loads[replica] < most]
        for mark in marks:
            holders = self._holders.get(mark, set())
            for replica in free:
                if replica in holders:
                    return replica
        return None

    def _remember(self, marks: Sequence[str], chosen: Replica) -> None:
        fade = 1 - 1 / (MEMORY * len(self._recent))
        self._recent = {replica: fade * count for replica, count in self._recent.items()}
        self._recent[chosen] += 1
        for mark in marks:
            self._holders.setdefault(mark, set()).add(chosen)
            self._holders.move_to_end(mark)
        while len(self._holders) > self._most_marks:
            self._holders.popitem(last=False)
