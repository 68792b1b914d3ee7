"""Several answers in one response: choices of the second prompt are numbered behind those of the first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from service.budget.plan import Budget
from service.chat.answer import Answer
from service.chat.reply import Reply, Usage
from service.chat.spelling import Alphabet
from service.engine.protocol import Delta, Sink
from service.errors import ServiceError
from service.telemetry.phases import Phases


class Together(Reply):
    """Listens to each answer as soon as it is added, so that one that has ended keeps no slot from the next.

    `streamed`: what an answer says is on its way at once. Whoever holds this closes it.
    """

    def __init__(self, first: Answer, *, streamed: bool) -> None:
        self.created = first.created
        self._answers: list[Answer] = []
        self._streamed = streamed
        self._early: deque[Delta | ServiceError] = deque()
        self._sink: Sink | None = None
        self._failed = False
        self.add(first)

    def add(self, answer: Answer) -> None:
        """One more."""
        part = _Part(self, answer, self.n, self._streamed)
        self._answers.append(answer)
        answer.listen(part)

    @property
    def id(self) -> str:
        return self._answers[0].id

    @property
    def model(self) -> str:
        return self._answers[0].model

    @property
    def n(self) -> int:
        return sum(answer.n for answer in self._answers)

    @property
    def complete(self) -> bool:
        """Also for whoever listens late: what was early is complete with the last of it."""
        return not self._early and all(answer.complete for answer in self._answers)

    @property
    def usage(self) -> Usage:
        each = [answer.usage for answer in self._answers]
        return Usage(
            sum(usage.prompt_tokens for usage in each),
            sum(usage.completion_tokens for usage in each),
            sum(usage.cached_tokens for usage in each),
        )

    @property
    def headers(self) -> dict[str, str]:
        """Of the prompt that was given the least room."""
        return min(self._answers, key=lambda answer: answer.budget.max_output_tokens).headers

    @property
    def alphabet(self) -> Alphabet | None:
        return self._answers[0].alphabet

    @property
    def tells_thinking(self) -> bool:
        return False

    @property
    def budgets(self) -> Sequence[Budget]:
        return [answer.budget for answer in self._answers]

    def phases(self) -> Sequence[Phases]:
        return [answer.observation.phases() for answer in self._answers]

    def listen(self, sink: Sink) -> None:
        self._sink = sink
        while self._early:
            item = self._early.popleft()
            if isinstance(item, Delta):
                sink.put(item)
            else:
                sink.fail(item)

    def pass_on(self, item: Delta | ServiceError) -> None:
        """What one of the answers has, in the numbers of all. Nothing follows a failure."""
        if self._failed:
            return
        if isinstance(item, ServiceError):
            self._failed = True
            self.fail(item)  # the others end with it
        if self._sink is None:
            self._early.append(item)
        elif isinstance(item, Delta):
            self._sink.put(item)
        else:
            self._sink.fail(item)

    def fail(self, error: ServiceError) -> None:
        for answer in self._answers:
            answer.fail(error)

    def close(self) -> None:
        for answer in self._answers:
            answer.close()

    def began(self, status: int) -> None:
        for answer in self._answers:
            answer.began(status)

    def showed(self) -> None:
        """A stream shows them one by one, and each part notes it."""
        for answer in () if self._streamed else self._answers:
            answer.showed()

    def ended(self) -> None:
        for answer in self._answers:
            answer.ended()

    def left(self) -> None:
        for answer in self._answers:
            answer.left()

    def stalls(self) -> None:
        for answer in self._answers:
            answer.stalls()

    def reads(self) -> None:
        for answer in self._answers:
            answer.reads()


class _Part(Sink):
    """One of the answers, seen by all."""

    def __init__(self, together: Together, answer: Answer, first_index: int, streamed: bool) -> None:
        self._together = together
        self._answer = answer
        self._first_index = first_index
        self._unseen = streamed

    def put(self, delta: Delta) -> None:
        delta.index += self._first_index
        if self._unseen and delta.text:
            self._unseen = False
            self._answer.showed()
        self._together.pass_on(delta)

    def fail(self, error: ServiceError) -> None:
        self._together.pass_on(error)
