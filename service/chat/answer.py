"""One running answer: what a request holds from admission to its close."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from service.budget.plan import Budget
from service.engine.protocol import Delta, Generation, Sink
from service.errors import ServiceError
from service.telemetry.observer import Observation


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer; a token is a token id, the end token included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Answer(Sink):
    """Passes deltas on and notes them. Whoever holds it closes it, whatever has happened before."""

    def __init__(
        self,
        budget: Budget,
        generation: Generation,
        observation: Observation,
        leave: Callable[[Answer], None],
    ) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.budget = budget
        self.observation = observation
        self.record = observation.record
        self.record.response_id = self.id
        self._unfinished = self.record.n
        self._generation = generation
        self._leave = leave
        self._closed = False
        self._sink: Sink | None = None

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self.record.model

    @property
    def n(self) -> int:
        """How many choices there are."""
        return self.record.n

    def listen(self, sink: Sink) -> None:
        """Hand every delta, from the first, to `sink`."""
        self._sink = sink
        self._generation.listen(self)

    def put(self, delta: Delta) -> None:
        self.record.saw(delta)
        if delta.finish is not None:
            self._unfinished -= 1
        if self._sink is not None:
            self._sink.put(delta)

    def fail(self, error: ServiceError) -> None:
        if self.complete:  # what comes too late changes nothing
            return
        self.observation.failed(error)
        if self._sink is not None:
            self._sink.fail(error)

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    @property
    def usage(self) -> Usage:
        """What has been used so far; final once the answer is complete."""
        return Usage(self.budget.prompt_tokens, self.record.output_tokens, self.record.cached_tokens)

    def close(self) -> None:
        """Give back what the answer holds; ends the generation if it still runs. Never waits."""
        if self._closed:
            return
        self._closed = True
        self._sink = None
        if not self.complete:
            self._generation.abort()
        self._leave(self)
        self.observation.close()
