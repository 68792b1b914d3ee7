"""One request as it weighs on the engine, and what is expected for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What a request asks of the engine, in tokens."""

    prompt_tokens: int
    output_tokens: int  # of one answer, at most
    n: int = 1
    cached_tokens: int | None = None  # of the prompt; None: nobody knows

    @property
    def tokens(self) -> int:
        """What it may take of the key-value cache."""
        return self.prompt_tokens + self.n * self.output_tokens


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected for one request, from its arrival, in seconds; None is unknown."""

    queue_s: float | None
    prefill_s: float | None
    idle_prefill_s: float | None  # on an engine with nothing else to do
    decode_s: float | None  # of an answer of usual length
    margin_s: float = 0.0  # by which first tokens have lately come later than predicted

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token."""
        return _sum(self.queue_s, self.prefill_s)

    @property
    def total_s(self) -> float | None:
        """From arrival to the last token."""
        return _sum(self.first_token_s, self.decode_s)

    def report(self, before_s: float) -> dict[str, float | None]:
        """The object `predicted` of explain, in milliseconds; `before_s` is what the request has taken."""
        return {
            "queue_ms": _ms(self.queue_s),
            "prefill_ms": _ms(self.prefill_s),
            "decode_ms": _ms(self.decode_s),
            "ttft_ms": _ms(_sum(before_s, self.first_token_s)),
            "total_ms": _ms(_sum(before_s, self.total_s)),
        }

    @property
    def for_others_s(self) -> float | None:
        """How much of the time to the first token is due to other requests."""
        if self.prefill_s is None or self.idle_prefill_s is None:
            return self.queue_s
        return _sum(self.queue_s, max(0.0, self.prefill_s - self.idle_prefill_s))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
