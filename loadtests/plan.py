"""What a run does and when: steps on one absolute schedule, shared by every process that makes load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

VARIABLE = "LOADTEST_PLAN"  # the environment variable that tells Locust's processes where the plan is
KEY_VARIABLE = "LOADTEST_API_KEY"  # an API key stays out of files and command lines


@dataclass(frozen=True, slots=True)
class Step:
    """One stretch of load: `users` send one request after another, or `rate_per_s` arrive on their own."""

    number: int
    part: str  # what the step belongs to: steps of one part are compared with each other
    name: str
    workload: str
    start_s: float  # after the run's beginning
    length_s: float
    users: int = 0
    rate_per_s: float = 0.0
    settle_s: float = 0.0  # at its beginning, sent and kept but not counted
    requests: int = 0  # at most so many; 0 is no limit

    @property
    def title(self) -> str:
        """Part and step."""
        return self.name if self.name == self.part else f"{self.part} {self.name}"

    @property
    def end_s(self) -> float:
        """When nothing more is sent."""
        return self.start_s + self.length_s

    @property
    def open(self) -> bool:
        """Whether arrivals wait for nobody."""
        return self.rate_per_s > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of steps against one server, and all that is the same in each of its requests."""

    url: str
    model: str
    folder: str
    steps: Sequence[Step]
    run: str  # makes cold prompts of this run unlike those of any other
    seed: int = 1
    patience_s: float = 120.0  # for one answer
    max_requests: int = 20_000
    extras: dict[str, Any] | None = None  # fields for every request body

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return max(step.end_s for step in self.steps)

    def step_at(self, at_s: float) -> Step | None:
        """The step in which `at_s` lies; none in a pause."""
        return next((step for step in self.steps if step.start_s <= at_s < step.end_s), None)

    def next_step(self, at_s: float) -> Step | None:
        """The first step that begins later."""
        return next((step for step in self.steps if step.start_s > at_s), None)

    def users_by(self, at_s: float) -> int:
        """The most users of any step that has begun by then."""
        return max((step.users for step in self.steps if step.start_s <= at_s), default=0)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(orjson.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        fields = orjson.loads(path.read_bytes())
        return cls(**{**fields, "steps": [Step(**step) for step in fields["steps"]]})
