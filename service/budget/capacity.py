"""How many chats of one shape the key-value cache holds, now and on an idle engine."""

from __future__ import annotations

from dataclasses import dataclass

from service.budget.kv import KvCost
from service.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Shape:
    """A chat by its token counts; `cached_tokens` of the prompt are a beginning that all share.

    Raises:
        InvalidValue: for counts no chat can have, naming the one.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        for name, count in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            if count < 1:
                raise InvalidValue(f"{name} must be at least 1, not {count}.", param=name)
        if not 0 <= self.cached_tokens <= self.prompt_tokens:
            raise InvalidValue(
                f"cached_tokens must be between 0 and prompt_tokens ({self.prompt_tokens}), "
                f"not {self.cached_tokens}.",
                param="cached_tokens",
            )

    @property
    def tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Cache:
    """The engine's cache: sizes in tokens, handed out in whole blocks."""

    capacity_tokens: int
    used_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of `GET /v1/capacity`."""

    kv_bytes_per_token: int | None  # None: the model's configuration does not tell
    approximate: str | None
    capacity_tokens: int
    used_tokens: int
    block_size: int
    fits_window: bool
    shared_tokens: int  # of the common beginning, held once
    tokens_per_chat: int  # of each chat's own, in whole blocks
    chats_now: int
    chats_idle: int


def capacity(shape: Shape, cache: Cache, context_window: int, cost: KvCost | None) -> Capacity:
    """What fits beside what runs now, and what would fit if nothing ran.

    A shared beginning counts in whole blocks, and never the prompt's last token, which every
    request computes for itself. It is held once, and counted among the free tokens even while a
    running chat may already hold it: the answer is then too low by one beginning, never too high.
    """
    block = max(1, cache.block_size)
    shared = min(shape.cached_tokens, shape.prompt_tokens - 1) // block
    own = -(-shape.tokens // block) - shared
    fits = shape.tokens <= context_window

    def chats(tokens: int) -> int:
        return max(0, tokens // block - shared) // own if fits else 0

    return Capacity(
        kv_bytes_per_token=cost.bytes_per_token if cost else None,
        approximate=cost.approximate if cost else None,
        capacity_tokens=cache.capacity_tokens,
        used_tokens=cache.used_tokens,
        block_size=cache.block_size,
        fits_window=fits,
        shared_tokens=shared * block,
        tokens_per_chat=own * block,
        chats_now=chats(cache.capacity_tokens - cache.used_tokens),
        chats_idle=chats(cache.capacity_tokens),
    )
