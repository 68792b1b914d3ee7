"""Why a cached prefix ends, in one word out of a closed list, and what keeps it going the next time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Cause = Literal[
    "message edited",
    "message inserted",
    "history truncated",
    "system prompt changed",
    "tools changed",
    "template changed",
    "reply re-tokenized",
    "never seen",
    "block boundary",
]

ADVICE: Mapping[Cause, str] = {
    "message edited": "Send earlier messages again exactly as they were, and put what is new behind them.",
    "message inserted": "Append new messages at the end; one put in between makes everything after it cold.",
    "history truncated": "Let many old turns go at once and rarely, or sum them up: each cut makes all "
    "behind the system prompt cold.",
    "system prompt changed": "Keep the system prompt the same to the last character; a date, a name or an id "
    "belongs into the newest user message.",
    "tools changed": "Offer the same tools in the same order in every request of a conversation.",
    "template changed": "Render every request with the same template arguments; some templates write the "
    "date or the mode of the request at their beginning.",
    "reply re-tokenized": "Send replies back exactly as they were received; one that comes back as other "
    "tokens is read again, with all behind it.",
    "never seen": "This text is new here and has to be read; put what stays the same in front of it.",
    "block boundary": "Nothing to change: only whole blocks are kept, and the last token is always computed.",
}
