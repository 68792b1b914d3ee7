"""What this room gives: the prompt as token ids, and who each stretch of them comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.prompt.traced import WRITTEN_BY_TEMPLATE, Kind


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How one request wants its messages rendered; `cache_group` is who may share known pieces with whom."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    cache_group: str = ""


class Segment(NamedTuple):
    """Tokens of one origin; `message` is None for tools, preamble, generation prompt, template arguments."""

    message: int | None
    kind: Kind
    start: int
    end: int

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def of_template(self) -> bool:
        return self.kind in WRITTEN_BY_TEMPLATE


class MessageTokens(NamedTuple):
    """What one message costs: its own text, and what the template puts around it."""

    content: int
    template: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and tokenized conversation. The segments follow one another and cover every token."""

    token_ids: list[int]
    segments: tuple[Segment, ...]
    message_count: int
    text: str = field(repr=False)

    @property
    def content_tokens(self) -> int:
        """Tokens that are wholly the caller's text: content, tool calls, tools, names, template arguments."""
        return sum(segment.tokens for segment in self.segments if not segment.of_template)

    @property
    def template_tokens(self) -> int:
        """All other tokens; one that spans a border is among them."""
        return sum(segment.tokens for segment in self.segments if segment.of_template)

    @property
    def message_tokens(self) -> tuple[MessageTokens, ...]:
        """For each message, in order, what it costs. What belongs to no message is in `shared_tokens`."""
        content, template = [0] * self.message_count, [0] * self.message_count
        for segment in self.segments:
            if segment.message is not None:
                (template if segment.of_template else content)[segment.message] += segment.tokens
        return tuple(map(MessageTokens, content, template))

    @property
    def shared_tokens(self) -> dict[Kind, int]:
        """Tokens that belong to no message, by kind: tools, generation prompt, the template's preamble."""
        shared: dict[Kind, int] = {}
        for segment in self.segments:
            if segment.message is None:
                shared[segment.kind] = shared.get(segment.kind, 0) + segment.tokens
        return shared
