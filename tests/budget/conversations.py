"""Conversations for the tests of budgets: well-formed ones as agents make them, and any at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from service.budget.history import Message

GENERATION_PROMPT_TOKENS = 3
MARKER_TOKENS = 4


def said(role: str, tokens: int = 1, **more: Any) -> dict[str, Any]:
    """A message of `tokens` content tokens, one a word."""
    return {"role": role, "content": "word " * tokens, **more}


def calls(*ids: str) -> dict[str, Any]:
    functions = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def result(id: str, tokens: int = 1) -> dict[str, Any]:
    return said("tool", tokens, tool_call_id=id)


@st.composite
def exchanges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A user turn and what an assistant makes of it, parallel tool calls included."""
    sizes = st.integers(0, 30)
    turns = [said("user", draw(sizes))]
    for _ in range(draw(st.integers(0, 2))):
        # Ids come from a small pool on purpose: some models count from zero again in every turn.
        ids = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
        turns += [calls(*ids), *(result(id, draw(sizes)) for id in draw(st.permutations(ids)))]
    return turns + draw(st.lists(sizes.map(lambda tokens: said("assistant", tokens)), max_size=1))


@st.composite
def well_formed(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Instructions, perhaps a greeting, at least one exchange."""
    sizes = st.integers(0, 30)
    head = draw(st.lists(st.builds(said, st.sampled_from(["system", "developer"]), sizes), max_size=2))
    greeting = draw(st.lists(st.builds(said, st.just("assistant"), sizes), max_size=1))
    middle = draw(st.lists(exchanges(), min_size=1, max_size=8))
    return [*head, *greeting, *(message for turns in middle for message in turns)]


anything = st.lists(
    st.one_of(
        st.builds(said, st.sampled_from(["system", "user", "user", "assistant"]), st.integers(0, 30)),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True).map(lambda ids: calls(*ids)),
        st.builds(result, st.sampled_from("abcd"), st.integers(0, 30)),
    ),
    max_size=24,
)


@dataclass
class Rendered:
    """A prompt of so many tokens, as `service.budget.fit` asks for one."""

    messages: list[Message]
    token_ids: list[int]
    template_tokens: int
    message_tokens: list[tuple[int, int]]

    @property
    def prompt_tokens(self) -> int:
        return len(self.token_ids)


@dataclass
class Additive:
    """A template that renders each message alike wherever it stands. Remembers what it was asked for."""

    shortfall: int = 0  # tokens that a cut prompt has beyond what its messages had before
    rendered: list[Rendered] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message]) -> Rendered:
        contents = [len((message["content"] or "").split()) for message in messages]
        extra = GENERATION_PROMPT_TOKENS + (self.shortfall if self.rendered else 0)
        template = MARKER_TOKENS * len(messages) + extra
        costs = [(content, MARKER_TOKENS) for content in contents]
        self.rendered.append(Rendered(list(messages), [0] * (sum(contents) + template), template, costs))
        return self.rendered[-1]
