"""One streamed answer, timed as its bytes come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.errors import shown
from service.probe.target import Json, Target
from service.probe.trouble import Impatience, ProbeError

TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass(slots=True)
class Answer:
    """What was seen of one answer. Times are seconds on the monotonic clock."""

    begun_s: float
    pieces_s: list[float] = field(default_factory=list)  # when each piece of text came
    ended_s: float = 0.0
    usage: Json | None = None
    phases: Json | None = None  # of a Twophase

    @property
    def tokens(self) -> int:
        """Tokens written: the server's count, or where it gives none, pieces of text."""
        counted = (self.usage or {}).get("completion_tokens")
        return counted if isinstance(counted, int) else len(self.pieces_s)

    @property
    def first_ms(self) -> float:
        """From the request to the first text."""
        return 1e3 * (self.pieces_s[0] - self.begun_s)

    @property
    def writing_ms(self) -> float:
        """From the first text to the last."""
        return 1e3 * (self.pieces_s[-1] - self.pieces_s[0])

    @property
    def total_ms(self) -> float:
        """From the request to the end of the answer."""
        return 1e3 * (self.ended_s - self.begun_s)

    @property
    def pace_ms(self) -> float:
        """Time per token after the first; 0 where there is none."""
        return self.writing_ms / (self.tokens - 1) if self.tokens > 1 else 0.0

    @property
    def gaps_ms(self) -> list[float]:
        """Between one piece of text and the next."""
        return [1e3 * (b - a) for a, b in zip(self.pieces_s, self.pieces_s[1:], strict=False)]


def ask(target: Target, body: Json, until_s: float, on_piece: Callable[[], None]) -> Answer:
    """Send a chat request and read its answer to the end; `on_piece` is called for each piece of text.

    Raises:
        ProbeError: it was refused or broke off, or had no text. Impatience: it was not over at `until_s`.
    """
    answer = Answer(time.monotonic())
    with target.stream({**body, "stream": True}, until_s - answer.begun_s) as response:
        lines = _in_time(response.iter_lines(), until_s)
        for event in _events(response, lines, target.url):
            if _take(answer, event, time.monotonic()):
                on_piece()
        answer.ended_s = time.monotonic()
        for _ in lines:  # to its last byte, or the next request would need a connection of its own
            pass
    if not answer.pieces_s:
        raise ProbeError("The answer has no text, so that there is nothing to time; try another prompt.")
    return answer


def _take(answer: Answer, event: Json, now_s: float) -> bool:
    """Note an event; whether it had text."""
    if error := event.get("error"):
        said = error.get("message", error) if isinstance(error, dict) else error
        raise ProbeError(f"The answer broke off: {shown(str(said), 300)}")
    answer.usage = event.get("usage") or answer.usage
    answer.phases = event.get("phases") or answer.phases
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    if not (any(delta.get(name) for name in TEXT_FIELDS) or delta.get("tool_calls")):
        return False
    answer.pieces_s.append(now_s)
    return True


def _in_time(lines: Iterator[str], until_s: float) -> Iterator[str]:
    """Also where a server says nothing but that it still lives."""
    for line in lines:
        if time.monotonic() > until_s:
            raise Impatience("An answer took longer than --timeout allows.")
        yield line


def _events(response: httpx.Response, lines: Iterator[str], url: str) -> Iterator[dict[str, Any]]:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise ProbeError(f"{url} did not stream its answer, so that its first token cannot be timed.")
    for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            try:
                event = json.loads(data)
            except ValueError:
                raise ProbeError(f"{url} sent an event that is no JSON.") from None
            if isinstance(event, dict):
                yield event
