"""What a caller asks for by way of output."""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Ask:
    """The output of one request: `n` answers of at most `max_tokens`, None where the caller names no length.

    Raises:
        InvalidValue: for less than one token or one answer, naming the caller's own field.
    """

    max_tokens: int | None = None
    n: int = 1
    field: str = "max_tokens"  # or `max_completion_tokens`, as the caller wrote it

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidValue(f"{self.field} must be at least 1, not {self.max_tokens}.", param=self.field)
        if self.n < 1:
            raise InvalidValue(f"n must be at least 1, not {self.n}.", param="n")
