"""What a response sends: one answer, or several that leave together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.budget.plan import Budget
from service.chat.spelling import Alphabet
from service.engine.protocol import Sink
from service.errors import ServiceError
from service.telemetry.phases import Phases


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer; a token is a token id, the end token included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None  # of the completion; None where thinking cannot be told from answer


class Reply(Protocol):
    """An answer under way, as its response sees it: where deltas come from, and whom to tell how it goes."""

    created: int  # seconds since 1970

    @property
    def id(self) -> str:
        """The name of the answer, by which its caller knows it."""

    @property
    def model(self) -> str:
        """The name under which the model is served."""

    @property
    def n(self) -> int:
        """How many choices there are."""

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""

    @property
    def usage(self) -> Usage:
        """What has been used so far; final once the answer is complete."""

    @property
    def headers(self) -> dict[str, str]:
        """Response headers: what was done to fit the budget, what is left of the tenant's minute."""

    @property
    def alphabet(self) -> Alphabet | None:
        """How tokens are spelled, where that has to be known."""

    @property
    def tells_thinking(self) -> bool:
        """Whether what is thought is told from what is answered."""

    @property
    def budgets(self) -> Sequence[Budget]:
        """Of each prompt."""

    def phases(self) -> Sequence[Phases]:
        """Of each prompt, as of now."""

    def listen(self, sink: Sink) -> None:
        """Hand every delta, from the first, to `sink`."""

    def fail(self, error: ServiceError) -> None:
        """End it with an error."""

    def close(self) -> None:
        """Give back what is held. Never waits; harmless when repeated."""

    def began(self, status: int) -> None:
        """The response has begun."""

    def showed(self) -> None:
        """The first of the content is on its way."""

    def ended(self) -> None:
        """The last byte is on its way."""

    def left(self) -> None:
        """The client has left before the end."""

    def stalls(self) -> None:
        """Bytes are ready and the client does not read."""

    def reads(self) -> None:
        """The client has caught up."""
