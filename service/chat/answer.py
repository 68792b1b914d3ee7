"""One running answer: what a request holds from admission to its close."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from service.budget.plan import Budget
from service.chat.holding import Holding
from service.chat.reading import Reading
from service.chat.reply import Reply, Usage
from service.chat.spelling import Alphabet
from service.engine.protocol import CallReader, Delta, Generation, Sink
from service.errors import DeadlineExceeded, ServiceError
from service.telemetry.observer import Observation
from service.telemetry.phases import Phases


class Answer(Sink, Reply):
    """Passes deltas on and notes them. Whoever holds it closes it, whatever has happened before."""

    def __init__(
        self,
        budget: Budget,
        generation: Generation,
        observation: Observation,
        holding: Holding,
        deadline_s: float | None = None,
        replies: list[list[int]] | None = None,
        readers: Sequence[CallReader] = (),
        reading: Reading | None = None,
    ) -> None:
        self.created = int(time.time())
        self.budget = budget
        self.reading = reading  # without one, deltas go on as the engine made them
        self.holding = holding
        self.observation = observation
        self.record = observation.record
        self._saw = self.record.saw  # looked up once: these two are called for every token
        self._wrote = holding.slot.wrote if holding.slot is not None else None
        self._content = self.record.content
        self._unfinished = self.record.n
        self._handed_over = False  # the end of every choice, to whoever listens
        self._replies = replies  # token ids by choice, where they are to be remembered
        self._readers = readers  # by choice; none for an answer that is text alone
        self._generation = generation
        self._closed = False
        self._failure: ServiceError | None = None
        self._sink: Sink | None = None
        self._alarm = None if deadline_s is None else _alarm(deadline_s, self._out_of_time)

    @property
    def id(self) -> str:
        """The name of the answer, by which its caller knows it."""
        return self.record.response_id

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self.record.model

    @property
    def n(self) -> int:
        """How many choices there are."""
        return self.record.n

    @property
    def headers(self) -> dict[str, str]:
        """What was done to fit the budget, and what is left of the tenant's minute."""
        visit = self.holding.visit
        return {**self.budget.headers(), **({} if visit is None else visit.headers())}

    @property
    def alphabet(self) -> Alphabet | None:
        """How tokens are spelled, where their logprobs were asked for or thinking is read."""
        return None if self.reading is None else self.reading.alphabet

    @property
    def tells_thinking(self) -> bool:
        """Whether what is thought is told from what is answered."""
        return self.record.reasons

    @property
    def budgets(self) -> list[Budget]:
        """Of each prompt."""
        return [self.budget]

    def phases(self) -> list[Phases]:
        """Of each prompt, as of now."""
        return [self.observation.phases()]

    def listen(self, sink: Sink) -> None:
        """Hand every delta, from the first, to `sink`."""
        self._sink = sink
        if self._failure is not None:
            self._tell(self._failure)
        self._generation.listen(self)

    def put(self, delta: Delta) -> None:
        self._saw(delta)
        if self._wrote is not None:
            self._wrote(len(delta.token_ids), delta.clock.cached_tokens if delta.clock is not None else 0)
        if self._content is not None:
            self._content.answers[delta.index].append(delta.text)
        if self._replies is not None:
            self._replies[delta.index] += delta.token_ids
        if delta.finish is not None:
            self._unfinished -= 1
            if self._unfinished == 0 and self.holding.slot is not None:
                self.holding.slot.release(complete=True)  # a slow reader keeps no place in the engine
        if self._sink is not None:
            if self.reading is not None:
                self.reading.read(delta)
                self.record.reasoning_tokens += delta.reasoning_tokens
            if self._readers:
                self._readers[delta.index].read(delta)
            self._sink.put(delta)
        self._handed_over = self._unfinished == 0

    def fail(self, error: ServiceError) -> None:
        if self._handed_over or self._failure is not None:  # what comes too late changes nothing
            return
        self._failure = error
        self.observation.failed(error)
        self._generation.abort()  # a reader who is behind hears of it late; nobody waits for that
        if self.holding.slot is not None:
            self.holding.slot.release()
        self._tell(error)

    def _tell(self, error: ServiceError) -> None:
        """End what the sink writes: a delta that is under way already must not come after its end."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.fail(error)

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    @property
    def usage(self) -> Usage:
        """What has been used so far; final once the answer is complete."""
        record = self.record
        thought = record.reasoning_tokens if record.reasons else None
        return Usage(self.budget.prompt_tokens, record.output_tokens, record.cached_tokens, thought)

    def began(self, status: int) -> None:
        """The response has begun."""
        self.record.status = status

    def showed(self) -> None:
        """The first of the content is on its way."""
        self.record.first_content_s = time.monotonic()

    def ended(self) -> None:
        """The last byte is on its way."""
        self.record.last_byte_s = time.monotonic()

    def left(self) -> None:
        """The client has left before the end."""
        self.record.client_left = True

    def stalls(self) -> None:
        """Bytes are ready and the client does not read."""
        self.record.client_stalls()

    def reads(self) -> None:
        """The client has caught up."""
        self.record.client_reads()

    def close(self) -> None:
        """Give back what the answer holds; ends the generation if it still runs. Never waits."""
        if self._closed:
            return
        self._closed = True
        self._sink = None
        if self._alarm is not None:
            self._alarm.cancel()
        if not self.complete and self._failure is None:  # what has failed is ended already
            self._generation.abort()
        self.holding.close(self.budget.prompt_tokens + self.record.output_tokens, complete=self.complete)
        self.observation.close()

    def _out_of_time(self) -> None:
        self.fail(DeadlineExceeded("The request's own deadline has passed before its answer was complete."))


def _alarm(deadline_s: float, ring: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(max(0.0, deadline_s - time.monotonic()), ring)
