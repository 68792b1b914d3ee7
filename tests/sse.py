"""Reads server-sent events in tests: what arrived, and when."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Events:
    """The events of one stream."""

    data: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Every event but the last `[DONE]`, parsed."""
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Events that carry choices."""
        return [event for event in self.objects if event.get("choices")]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage chunk's usage."""
        found = [event["usage"] for event in self.objects if event.get("usage") and not event["choices"]]
        return found[-1] if found else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error event's error."""
        found = [event["error"] for event in self.objects if "error" in event]
        return found[-1] if found else None

    def text(self, index: int = 0) -> str:
        """What one choice said."""
        deltas = [c["delta"] for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]
        return "".join(delta.get("content") or "" for delta in deltas)

    def finishes(self, index: int = 0) -> list[str]:
        """The finish reasons of one choice."""
        choices = [c for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]
        return [c["finish_reason"] for c in choices if c["finish_reason"]]


def read(response: httpx.Response) -> Events:
    """All events of a whole body."""
    events = Events()
    for line in response.text.split("\n"):
        if line.startswith("data: "):
            events.data.append(line.removeprefix("data: "))
        elif line.startswith(":"):
            events.comments.append(line)
    return events
