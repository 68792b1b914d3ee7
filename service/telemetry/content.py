"""What was asked and answered, for a span, where the operator wants that: nowhere else, not by default.

The shape is that of `gen_ai.input.messages` and `gen_ai.output.messages` in the GenAI conventions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson


class Content:
    """The words of one request, kept until its span is made."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], n: int) -> None:
        self.answers: list[list[str]] = [[] for _ in range(n)]  # pieces of text, by choice
        self._messages = messages

    def asked(self) -> str:
        """The conversation that came, as JSON."""
        return orjson.dumps(
            [{"role": message["role"], "parts": _parts(message)} for message in self._messages]
        ).decode()

    def answered(self, finishes: Sequence[str | None]) -> str:
        """The answers as far as they came, as JSON; `finishes` by choice."""
        return orjson.dumps(
            [
                {"role": "assistant", "parts": [_text("".join(pieces))], "finish_reason": finish}
                for pieces, finish in zip(self.answers, finishes, strict=True)
            ]
        ).decode()


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or []]
    parts = [_text(text) for text in texts]
    for call in message.get("tool_calls") or []:
        function = call["function"]
        parts.append(
            {
                "type": "tool_call",
                "id": call["id"],
                "name": function["name"],
                "arguments": function.get("arguments"),
            }
        )
    return parts


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}
