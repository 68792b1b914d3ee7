"""The sentences of a refused budget: each names window, prompt and output, and what to change.

Clients know a context overflow by its code, by the words "This model's maximum context length is" or, those
that see the message alone, by "prompt is too long". All three stand only where the window decides, so that
a client that reacts to any of them does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.budget.ask import Ask
from service.budget.limits import Limit
from service.errors import BudgetExceeded, ContextLengthExceeded, InputBudgetExceeded, OutputBudgetExceeded


@dataclass(frozen=True, slots=True)
class Need:
    """The figures of a request that may not fit, in tokens."""

    context_window: int
    prompt: int
    output: int | None  # asked for, or the default; None is "what is left"
    ask: Ask
    dropped_messages: int
    at_least: bool = False  # the prompt is so long that its tokens were not counted

    @property
    def prompt_phrase(self) -> str:
        cut = f" even with the oldest messages left out, {self.dropped_messages} of them"
        least = "at least " if self.at_least else ""
        return f"the prompt has {least}{self.prompt} tokens{cut if self.dropped_messages else ''}"

    @property
    def output_phrase(self) -> str:
        if self.output is None:
            return "no output length was asked for"
        if self.ask.max_tokens is None:
            return f"the default output is {self.output}"
        return f"the output asked for is {self.output}"


def prompt_too_long(need: Need, limit: Limit) -> BudgetExceeded:
    """The prompt alone is over `limit`."""
    if limit.source == "window":
        return ContextLengthExceeded(
            f"This model's maximum context length is {need.context_window} tokens, of which an answer needs "
            f"at least one; {need.prompt_phrase} and {need.output_phrase}: the prompt is too long. "
            "Shorten the messages.",
            param="messages",
            limit=limit.source,
        )
    return InputBudgetExceeded(
        f"{_owner(limit)} allows prompts of at most {limit.tokens} tokens; {need.prompt_phrase} and "
        f"{need.output_phrase}, in a context window of {need.context_window}. Shorten the messages.",
        param="messages",
        limit=limit.source,
    )


def output_too_long(need: Need, limit: Limit) -> BudgetExceeded:
    """The prompt fits; the output beside it is over `limit`.

    Where the window decides, either side could give way. `messages` is named, as clients of this
    API know it: a client that reacts to an overflow shortens its history.
    """
    field = need.ask.field
    if limit.source == "window":
        return ContextLengthExceeded(
            f"This model's maximum context length is {need.context_window} tokens; {need.prompt_phrase} and "
            f"{need.output_phrase}, {need.prompt + (need.output or 0)} in all: the prompt is too long for "
            f"that. Shorten the messages, or set {field} to at most {limit.tokens}.",
            param="messages",
            limit=limit.source,
        )
    return OutputBudgetExceeded(
        f"{_owner(limit)} allows answers of at most {limit.tokens} tokens; {need.output_phrase}, "
        f"beside a prompt of {need.prompt} in a context window of {need.context_window}. Lower {field}.",
        param=field,
        limit=limit.source,
    )


def cache_too_small(need: Need, output: int, capacity: int) -> BudgetExceeded:
    """Even an idle engine could not hold the prompt and `n` answers of `output` tokens."""
    n, field = need.ask.n, need.ask.field
    return OutputBudgetExceeded(
        f"The engine's key-value cache holds {capacity} tokens; {need.prompt_phrase} and "
        f"{need.output_phrase}, so that the prompt and {n} x {output} tokens of output come to "
        f"{need.prompt + n * output}, in a context window of {need.context_window}. "
        f"Lower {field if n == 1 else f'n or {field}'}.",
        param=field if n == 1 else "n",
        limit="kv_cache",
    )


def _owner(limit: Limit) -> str:
    return "Your API key" if limit.source == "tenant" else "This service"
