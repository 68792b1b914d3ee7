"""All that one choice of an answer has said, put together from its deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.engine.protocol import CallDelta, Delta, TokenLogprob


@dataclass(slots=True)
class Call:
    """A tool call; `arguments` are JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Whole:
    """All that one choice has said."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    pieces: list[CallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reasoning_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stopped_by: str | None = None

    def add(self, delta: Delta) -> None:
        """Take what a delta brings."""
        self.texts.append(delta.text)
        self.thoughts.append(delta.reasoning)
        self.reasoning_logprobs += delta.reasoning_logprobs
        self.pieces += delta.calls
        self.logprobs += delta.logprobs
        if delta.finish is not None:
            self.finish, self.stopped_by = delta.finish, delta.stopped_by

    @property
    def text(self) -> str:
        """The answer itself."""
        return "".join(self.texts)

    @property
    def thought(self) -> str:
        """What was thought before."""
        return "".join(self.thoughts)

    @property
    def calls(self) -> Sequence[Call]:
        """The calls, each put together from its pieces."""
        calls: dict[int, Call] = {}
        for piece in self.pieces:
            if piece.id is not None:
                calls[piece.index] = Call(piece.id, piece.name or "")
            calls[piece.index].arguments += piece.arguments
        return list(calls.values())
