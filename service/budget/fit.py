"""Messages to a prompt that fits: render, and where history may give way, cut, render and look again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from service.budget.ask import Ask
from service.budget.history import Message, choose_cut, units, without
from service.budget.limits import Limits
from service.budget.plan import Budget, far_too_long, plan, prompt_room
from service.errors import FarTooLong

MAX_CUTS = 4


class Counted(Protocol):
    """A rendered prompt, as far as budgets look at it. Counts come from its tokenizer."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All of it."""

    @property
    def template_tokens(self) -> int:
        """The share of the template: markers, generation prompt, tokens that span a border."""

    @property
    def message_tokens(self) -> Sequence[tuple[int, int]]:
        """For each message its own tokens and the template's around it; the rest belongs to no message."""


Prompt = TypeVar("Prompt", bound=Counted)
Render = Callable[[Sequence[Message]], Awaitable[Prompt]]


async def fit(
    messages: Sequence[Message], limits: Limits, ask: Ask, render: Render[Prompt]
) -> tuple[Prompt, Budget]:
    """The prompt to send, and its budget.

    History is cut so that the whole output fits, before any output is clamped. The first rendering
    tells what each message takes; a cut is an estimate from that, rendered to be sure. A template
    may render the rest differently, so a cut that fell short is made again from the true count,
    each time deeper and at most `MAX_CUTS` times, the last time leaving out all that may go.

    Raises:
        InvalidValue: it does not fit. Whatever `render` raises.
    """
    try:
        prompt, dropped = await _readable(messages, limits, render)
    except FarTooLong as exc:
        dropped = sum(map(len, units(messages))) if limits.truncates else 0
        raise far_too_long(limits, ask, exc.least_tokens, dropped) from None
    if limits.truncates:
        rest = without(messages, _oldest(messages, dropped))
        prompt, more = await _cut(rest, prompt, prompt_room(limits, ask).tokens, render)
        dropped += more
    budget = plan(
        limits,
        ask,
        prompt_tokens=len(prompt.token_ids),
        template_tokens=prompt.template_tokens,
        dropped_messages=dropped,
    )
    return prompt, budget


async def _readable(
    messages: Sequence[Message], limits: Limits, render: Render[Prompt]
) -> tuple[Prompt, int]:
    """A rendering short enough to be tokenized, and how many of the oldest messages that left out.

    Only what could never fit is left out here, by its characters; what does fit is found by tokens.
    What the template adds is taken to be the same for each message: short messages are mostly that.
    There are at most `MAX_CUTS` cuts, the last one of all that may go.

    Raises:
        FarTooLong: it is longer still.
    """
    may_go, gone = units(messages) if limits.truncates else [], 0
    sizes = [sum(_characters(messages[at]) for at in unit) for unit in may_go]
    fixed = sum(map(_characters, messages)) - sum(sizes)
    for cuts_left in reversed(range(MAX_CUTS)):
        left = without(messages, may_go[:gone])
        try:
            return await render(left), len(messages) - len(left)
        except FarTooLong as exc:
            if gone == len(may_go):
                raise
            added = max(0.0, exc.characters - fixed - sum(sizes[gone:])) / len(left)
            whole = [size + added * len(unit) for size, unit in zip(sizes[gone:], may_go[gone:], strict=True)]
            more = choose_cut(whole, exc.characters - sum(whole), exc.most_characters)
            gone = min(gone + max(1, more), len(may_go)) if cuts_left else len(may_go)
    left = without(messages, may_go)
    return await render(left), len(messages) - len(left)


def _oldest(messages: Sequence[Message], dropped: int) -> list[range]:
    """The units that come to so many messages."""
    may_go = units(messages) if dropped else []
    return [unit for unit in may_go if unit.stop - may_go[0].start <= dropped]


def _characters(value: object) -> int:
    """The text in a message, in characters."""
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(_characters, parts))


async def _cut(
    messages: Sequence[Message], prompt: Prompt, room: int, render: Render[Prompt]
) -> tuple[Prompt, int]:
    """The prompt with as much of its history as fits `room`, and how many messages that left out."""
    if len(prompt.token_ids) <= room:
        return prompt, 0
    may_go = units(messages)
    tokens = [content + template for content, template in prompt.message_tokens]
    sizes = [sum(tokens[unit.start : unit.stop]) for unit in may_go]
    gone = 0
    for cuts_left in reversed(range(MAX_CUTS)):
        total = len(prompt.token_ids)
        if total <= room or gone == len(may_go):
            break
        left = sizes[gone:]
        gone += choose_cut(left, total - sum(left), room) if cuts_left else len(left)
        prompt = await render(without(messages, may_go[:gone]))
    return prompt, sum(len(unit) for unit in may_go[:gone])
