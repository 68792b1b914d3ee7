"""When an answer's tokens come: one prefill, then one token after another at a steady pace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Two rates that bound every answer: how long reading the prompt takes, how fast tokens follow.

    `prefill_s` is the reading alone. The first token comes out of it one token's time later, as
    each further one comes after the one before: N tokens are one prefill and N - 1 decode steps.
    """

    prefill_s: float
    tokens_per_s: float

    @property
    def first_token_s(self) -> float:
        """From the start of prefill to the first token."""
        return self.prefill_s + 1 / self.tokens_per_s

    def total_s(self, tokens: int) -> float:
        """From the start of prefill to the last of `tokens`, streaming or not: the work is the same."""
        return self.first_token_s + (tokens - 1) / self.tokens_per_s

    def first_byte_s(self, tokens: int, *, stream: bool) -> float:
        """When a reader first sees text: a stream shows each token, a whole answer waits for the last."""
        return self.first_token_s if stream else self.total_s(tokens)
