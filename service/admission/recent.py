"""The newest values of something, kept in order of size."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate


class Recent:
    """At most `size` values; a new one drives out the oldest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._by_age: deque[float] = deque()
        self._by_size: list[float] = []
        self._sums: list[float] | None = None

    def __len__(self) -> int:
        return len(self._by_size)

    def add(self, value: float) -> None:
        """Keep a value."""
        if len(self._by_age) == self._size:
            oldest = self._by_age.popleft()
            del self._by_size[bisect_right(self._by_size, oldest) - 1]
        self._by_age.append(value)
        insort(self._by_size, value)
        self._sums = None

    def quantile(self, share: float) -> float:
        """The value that `share` of all are at most; 0.0 of none."""
        if not self._by_size:
            return 0.0
        return self._by_size[min(len(self._by_size) - 1, int(share * len(self._by_size)))]

    def rest(self, made: float, most: float) -> float:
        """How much is still to come of something that has come to `made` and is cut at `most`.

        That is the mean over the values above `made`. Without such values it may grow by as much again.
        """
        values = self._by_size
        longer = bisect_right(values, made)
        if longer == len(values):
            return min(most - made, made) if values else most - made
        if self._sums is None:
            self._sums = list(accumulate(values, initial=0.0))
        cut = max(longer, bisect_right(values, most))
        total = self._sums[cut] - self._sums[longer] + (len(values) - cut) * most
        return total / (len(values) - longer) - made
