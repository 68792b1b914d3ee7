"""One request as it is kept: a line of JSON with raw times, from which all figures of a report come."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

Outcome = Literal[
    "ok", "refused", "left", "error_event", "cut", "empty", "http_error", "no_connection", "timeout"
]
OUTCOMES: tuple[Outcome, ...] = (
    "ok",
    "refused",
    "left",
    "error_event",
    "cut",
    "empty",
    "http_error",
    "no_connection",
    "timeout",
)
FAILURES: frozenset[Outcome] = frozenset(OUTCOMES) - {"ok", "refused", "left"}


@dataclass(slots=True)
class Sample:
    """Times are milliseconds after the instant at which the request was meant to be sent."""

    step: int
    index: int
    kind: str
    intended_unix_s: float
    into_s: float = 0.0  # how far into its step it was meant to be sent
    sent_ms: float = 0.0  # the send lag
    headers_ms: float | None = None  # status line and headers were here
    first_ms: float | None = None  # first content, reasoning or tool call: the time to the first token
    last_ms: float | None = None  # the last of these
    end_ms: float = 0.0  # nothing more to come
    gaps_ms: list[float] = field(default_factory=list)  # between chunks, which may hold several tokens
    streamed: bool = True
    words: int = 0
    asked_tokens: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = False  # whether tokens are the server's count, or else chunks
    status: int = 0
    outcome: Outcome = "cut"
    retry_after_s: float | None = None
    error: str = ""
    trace_id: str = ""
    phases: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Neither answered, nor refused, nor ended by us."""
        return self.outcome in FAILURES

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first, (last - first) / (tokens - 1)."""
        if self.outcome != "ok" or not self.streamed or self.first_ms is None or self.last_ms is None:
            return None
        return (self.last_ms - self.first_ms) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def sent_unix_s(self) -> float:
        """When it was really sent."""
        return self.intended_unix_s + self.sent_ms / 1e3

    @property
    def end_unix_s(self) -> float:
        """When it was over."""
        return self.intended_unix_s + self.end_ms / 1e3

    def to_json(self) -> bytes:
        """One line."""
        return orjson.dumps(self, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, line: bytes) -> Sample:
        """What `to_json` wrote."""
        return cls(**orjson.loads(line))


class Tail:
    """The samples of a run that is still going on: each look reads what has come since the last one."""

    def __init__(self, folder: Path) -> None:
        self.samples: list[Sample] = []
        self._folder = folder
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Read on; from the beginning when the run has begun anew."""
        paths = sorted(self._folder.glob("samples-*.jsonl"))
        if any(path.stat().st_size < self._read.get(path, 0) for path in paths):
            self.samples, self._read = [], {}
        for path in paths:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # a line that is being written comes with the next look
            self._read[path] = self._read.get(path, 0) + len(whole)
            self.samples += map(Sample.from_json, whole.splitlines())


def read_samples(folder: Path) -> list[Sample]:
    """All samples of a run, in the order of their intended instants. A torn last line is left out."""
    tail = Tail(folder)
    tail.look()
    return sorted(tail.samples, key=lambda sample: sample.intended_unix_s)
