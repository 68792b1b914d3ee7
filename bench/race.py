"""Who is asked for what, and when: every shape in every round, the contestants in alternating order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bench.contestants import Contestant
from bench.machine import Bystanders, load_average
from bench.sample import Results, Sample, most_disturbed, sample
from bench.shapes import Shape, lead_in

T = TypeVar("T")

LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How long, and how calm the machine has to be for a turn to count."""

    rounds: int
    deadline: float  # on the monotonic clock; no turn begins after it
    calm: float  # the share of the machine that others may take
    repeats: int  # how many disturbed turns are tried again
    patience_s: float  # how long to wait, in all, for a calmer machine


class Watcher(Protocol):
    """Is told how it goes."""

    def begins(self, what: str) -> None:
        """Something that takes a while."""

    def has(self, sample: Sample) -> None:
        """A contestant's turn is over."""

    def repeats(self, shape: Shape, others: float) -> None:
        """A turn was disturbed and is tried again."""

    def waits(self) -> None:
        """The machine is not calm."""


class Race:
    """Contestants that are ready, and the shapes to ask of them."""

    def __init__(self, contestants: Sequence[Contestant], shapes: Sequence[Shape], watcher: Watcher) -> None:
        self._contestants = contestants
        self._shapes = shapes
        self._watcher = watcher
        self._turn = 0
        self._waited_s = 0.0

    def warm_up(self) -> None:
        """Every contestant does everything once, unmeasured."""
        for contestant in self._contestants:
            self._watcher.begins(f"warming up {contestant.label}")
            for shape in self._shapes:
                contestant.run(lead_in(shape), turn=0)

    def run(self, rules: Rules) -> Results:
        """All rounds, or as many as there is time for."""
        results = Results()
        for round_number in range(rules.rounds):
            for shape in self._shapes:
                if time.monotonic() > rules.deadline:
                    results.complete = False
                    return results
                self._wait_for_calm(rules)
                self._settle(results, shape, round_number, rules)
        return results

    def _settle(self, results: Results, shape: Shape, round_number: int, rules: Rules) -> None:
        """One turn that counts, after as many disturbed ones as may be repeated."""
        samples = self._take_turn(shape, round_number)
        while (
            (others := most_disturbed(samples)) > rules.calm
            and len(results.disturbed) < rules.repeats * len(self._contestants)
            and time.monotonic() < rules.deadline
        ):
            self._watcher.repeats(shape, others)
            results.disturbed += samples
            self._wait_for_calm(rules)
            samples = self._take_turn(shape, round_number)
        results.samples += samples

    def _wait_for_calm(self, rules: Rules) -> None:
        """Returns when others leave the machine alone, or when patience or time is at its end."""
        while self._waited_s < rules.patience_s and time.monotonic() < rules.deadline:
            bystanders = self._bystanders()
            time.sleep(LOOK_S)
            if bystanders.share() <= rules.calm:
                return
            self._waited_s += LOOK_S
            self._watcher.waits()

    def _take_turn(self, shape: Shape, round_number: int) -> list[Sample]:
        self._turn += 1
        return [self._ask(contestant, shape) for contestant in order(self._contestants, round_number)]

    def _ask(self, contestant: Contestant, shape: Shape) -> Sample:
        self._watcher.begins(f"{shape.name}: {contestant.label}")
        contestant.run(lead_in(shape), -self._turn)
        load = load_average()
        bystanders = self._bystanders()
        outcome = contestant.run(shape, self._turn)
        taken = sample(contestant.name, shape.name, self._turn, outcome, bystanders.share(), load)
        self._watcher.has(taken)
        return taken

    def _bystanders(self) -> Bystanders:
        return Bystanders([contestant.child for contestant in self._contestants])


def order(contestants: Sequence[T], round_number: int) -> list[T]:
    """Everyone comes first, last, and before and after everyone else, equally often."""
    start = round_number // 2 % len(contestants)
    turned = [*contestants[start:], *contestants[:start]]
    return turned[::-1] if round_number % 2 else turned
