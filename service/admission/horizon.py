"""When running answers will end, in the engine's own time: decode steps.

All running answers advance together, one token a step, so the order in which they will end does not
change when the steps become slower or faster, and only the step has to be timed.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Horizon:
    """The expected ends of all running answers, in order."""

    def __init__(self) -> None:
        self._passed = 0.0  # steps since the service began
        self._ends: list[tuple[float, int]] = []
        self._lengths = 0.0  # of all running answers together, from their beginning, in steps

    def __len__(self) -> int:
        return len(self._ends)

    def advance(self, steps: float) -> None:
        """So many steps have been made."""
        self._passed += steps

    def enter(self, number: int, steps: float) -> float:
        """An answer begins that takes so many steps; returns its end."""
        self._lengths += steps
        return self._insert(number, steps)

    def move(self, number: int, end: float, steps: float) -> float:
        """The answer with this end takes so many steps from now; returns its new end."""
        self._remove(number, end)
        return self._insert(number, steps)

    def leave(self, number: int, end: float, steps: float) -> None:
        """The answer with this end, which was to take so many steps when it began, is over."""
        self._remove(number, end)
        self._lengths = self._lengths - steps if self._ends else 0.0

    def until_release(self, count: int) -> float:
        """Steps until `count` answers have ended, if another of usual length follows each.

        Beyond the first, answers end no faster than they do on average: several whose end is near
        are not all going to end at once. One that should have ended is no nearer than average.
        """
        running = len(self._ends)
        usual = self._lengths / running
        rounds, place = divmod(count - 1, running)
        expected = self._ends[place][0] - self._passed + rounds * usual
        average = usual / (running + 1)
        return max(expected, average * (count - 1)) if expected > 0 else average * count

    def _insert(self, number: int, steps: float) -> float:
        end = self._passed + steps
        insort(self._ends, (end, number))
        return end

    def _remove(self, number: int, end: float) -> None:
        del self._ends[bisect_left(self._ends, (end, number))]
