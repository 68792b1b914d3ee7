"""The decision: how long a prompt may be, how long its answer, and what was done to make both fit.

For a window W, a prompt of P tokens and n answers of M tokens:

    P         ≤  min(service's, tenant's input limit, W - 1)
    M         ≤  min(service's, tenant's output limit, W - P)
    P + n·M   ≤  what the engine's key-value cache holds

M is what the caller asks for, else the default, else what is left. Counts are those of the final
rendered prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.budget import refusals
from service.budget.ask import Ask
from service.budget.limits import Limit, Limits, Source, tightest
from service.errors import BudgetExceeded

Action = Literal["none", "truncated", "clamped", "truncated+clamped"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What one request may use and what was done to it. All figures are tokens but `dropped_messages`."""

    context_window: int
    input_limit: int
    input_limited_by: Source
    output_limit: int  # of one answer, beside this prompt
    output_limited_by: Source
    prompt_tokens: int
    template_tokens: int
    max_output_tokens: int  # of one answer
    dropped_messages: int = 0
    truncated_by: Source | None = None
    clamped_from: int | None = None

    @property
    def content_tokens(self) -> int:
        """What the messages themselves take; the rest of the prompt is the template's."""
        return self.prompt_tokens - self.template_tokens

    @property
    def action(self) -> Action:
        """What was done to the request."""
        if self.dropped_messages:
            return "truncated" if self.clamped_from is None else "truncated+clamped"
        return "none" if self.clamped_from is None else "clamped"

    @property
    def decided_by(self) -> Source | None:
        """The limit that called for the action, the first where there were two."""
        return self.truncated_by or (None if self.clamped_from is None else self.output_limited_by)

    def report(self) -> dict[str, int | str | None]:
        """The object `budget` of response bodies and usage chunks."""
        return {
            "context_window": self.context_window,
            "input_limit": self.input_limit,
            "output_limit": self.output_limit,
            "prompt_tokens": self.prompt_tokens,
            "template_tokens": self.template_tokens,
            "content_tokens": self.content_tokens,
            "max_output_tokens": self.max_output_tokens,
            "action": self.action,
            "dropped_messages": self.dropped_messages,
            "clamped_from": self.clamped_from,
        }

    def headers(self) -> dict[str, str]:
        """The response headers that say the same before the first byte of the body."""
        return {
            "x-budget-action": self.action,
            "x-budget-dropped-messages": str(self.dropped_messages),
            "x-budget-max-output-tokens": str(self.max_output_tokens),
        }


def plan(
    limits: Limits, ask: Ask, *, prompt_tokens: int, template_tokens: int, dropped_messages: int = 0
) -> Budget:
    """The budget of a request whose prompt, cut or not, is final.

    Raises:
        ContextLengthExceeded: the window decides. InputBudgetExceeded, OutputBudgetExceeded: an
        operator's limit does, or the key-value cache could never hold the request.
    """
    need = refusals.Need(limits.context_window, prompt_tokens, wanted(limits, ask), ask, dropped_messages)
    if prompt_tokens > limits.input.tokens:
        raise refusals.prompt_too_long(need, limits.input)
    output_limit = tightest(Limit(limits.context_window - prompt_tokens, "window"), limits.output)
    if need.output is not None and need.output > output_limit.tokens and not limits.clamps:
        raise refusals.output_too_long(need, output_limit)
    granted = min(output_limit.tokens, need.output or _left_in_cache(limits, ask, prompt_tokens))
    if 0 < limits.kv_capacity_tokens < prompt_tokens + ask.n * granted:
        raise refusals.cache_too_small(need, granted, limits.kv_capacity_tokens)
    return Budget(
        context_window=limits.context_window,
        input_limit=limits.input.tokens,
        input_limited_by=limits.input.source,
        output_limit=output_limit.tokens,
        output_limited_by=output_limit.source,
        prompt_tokens=prompt_tokens,
        template_tokens=template_tokens,
        max_output_tokens=granted,
        dropped_messages=dropped_messages,
        truncated_by=prompt_room(limits, ask).source if dropped_messages else None,
        clamped_from=need.output if need.output is not None and need.output > granted else None,
    )


def far_too_long(limits: Limits, ask: Ask, least_tokens: int, dropped_messages: int) -> BudgetExceeded:
    """The refusal of a prompt whose tokens need not be counted."""
    output = wanted(limits, ask)
    need = refusals.Need(limits.context_window, least_tokens, output, ask, dropped_messages, at_least=True)
    return refusals.prompt_too_long(need, limits.input)


def wanted(limits: Limits, ask: Ask) -> int | None:
    """M before any limit: asked for, or the default; None is "what is left"."""
    return limits.default_output_tokens if ask.max_tokens is None else ask.max_tokens


def prompt_room(limits: Limits, ask: Ask) -> Limit:
    """The longest prompt beside which M fits whole: what history is cut to. It may be below 1.

    Of an M above the operators' limit only that much counts: history must not give way to tokens
    that are never granted. Where M is "what is left", one token is enough.
    """
    output = min(wanted(limits, ask) or 1, limits.output.tokens)
    room = tightest(limits.input, Limit(limits.context_window - output, "window"))
    if limits.kv_capacity_tokens == 0:
        return room
    return tightest(room, Limit(limits.kv_capacity_tokens - ask.n * output, "kv_cache"))


def _left_in_cache(limits: Limits, ask: Ask, prompt_tokens: int) -> int:
    """The cache bounds "what is left" too; a named output it takes or refuses, and never shortens."""
    if limits.kv_capacity_tokens == 0:
        return limits.context_window
    return max(1, (limits.kv_capacity_tokens - prompt_tokens) // ask.n)
