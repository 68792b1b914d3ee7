"""One answer as its client sees it: what came, when, and whether it is whole. No I/O."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import orjson

DONE = b"[DONE]"
SAYS = ("content", "reasoning_content", "reasoning", "refusal")  # a delta's fields that show a token


class Answer:
    """Takes the events of a stream, or one whole body. Instants are in seconds of any one clock."""

    def __init__(self) -> None:
        self.said_at: list[float] = []  # one instant for each chunk that brought something to read
        self.text: list[str] = []
        self.finish: str | None = None
        self.done = False
        self.error = ""
        self.usage: dict[str, Any] = {}
        self.phases: dict[str, Any] | None = None

    def take(self, data: bytes, at: float) -> None:
        """One event's data, read at `at`."""
        if data == DONE:
            self.done = True
            return
        if (event := self._parsed(data)) is None:
            return
        if event.get("usage"):
            self.usage = event["usage"]
        self.phases = event.get("phases") or self.phases
        for choice in event.get("choices") or ():
            self._take_choice(choice.get("delta") or {}, choice.get("finish_reason"), at)

    def take_whole(self, body: bytes, at: float) -> None:
        """The body of an answer that is not streamed."""
        if (parsed := self._parsed(body)) is None:
            return
        self.usage = parsed.get("usage") or {}
        self.phases = parsed.get("phases")
        for choice in parsed.get("choices") or ():
            self._take_choice(choice.get("message") or {}, choice.get("finish_reason"), at)
        self.done = True

    @property
    def whole(self) -> bool:
        """Whether it came to its end: a finish reason and, in a stream, the closing event."""
        return self.done and self.finish is not None and not self.error

    @property
    def tokens(self) -> int:
        """Output tokens by the server's own count; without one, the chunks that brought something."""
        return int(self.usage.get("completion_tokens") or len(self.said_at))

    @property
    def prompt_tokens(self) -> int:
        """Zero where the server does not say."""
        return int(self.usage.get("prompt_tokens") or 0)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were in the prefix cache; zero where the server does not say."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def _parsed(self, data: bytes) -> dict[str, Any] | None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            self.error = self.error or f"an event is no JSON object: {data[:80]!r}"
            return None
        if event.get("error"):
            self.error = _sentence(event["error"])
            return None
        return event

    def _take_choice(self, delta: dict[str, Any], finish: str | None, at: float) -> None:
        self.finish = finish or self.finish
        said = [delta[name] for name in SAYS if delta.get(name)]
        if said or delta.get("tool_calls"):
            self.said_at.append(at)
            self.text += [text for text in said if isinstance(text, str)]


def _sentence(error: Any) -> str:
    """An error's message, whatever shape it has, short enough for a table."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:200]


def refusal_sentence(body: bytes) -> str:
    """What the body of an error response says."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode(errors="replace")
    return _sentence(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)


def seconds_of(retry_after: str, now_unix_s: float) -> float | None:
    """What a `Retry-After` header asks for, in seconds or as a date; None where it says neither."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now_unix_s)
    except ValueError:
        return None
