"""Answers whose text is known beforehand: what a reader gets of it, streamed and whole."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import body
from tests.sse import Events, read

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
COLOURS = "red-orange-yellow-green"


def forced(web: httpx.Client, text: str, **fields: Any) -> tuple[dict[str, Any], Events]:
    """The same answer, which can only be this text, whole and streamed: told alike in both modes."""
    asked = body(max_tokens=48, temperature=0, structured_outputs={"choice": [text]}, **fields)
    whole = web.post(CHAT, json=asked).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = read(web.post(CHAT, json={**asked, "stream": True, "stream_options": options}))
    [choice] = whole["choices"]
    assert events.finishes() == [choice["finish_reason"]]
    assert events.text() == choice["message"]["content"]
    assert events.usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events.usage[name] == whole["usage"][name]
    running = [event["usage"]["completion_tokens"] for event in events.objects]
    assert running == sorted(running) and running[-1] == whole["usage"]["completion_tokens"]
    return choice, events


@pytest.mark.parametrize("text", ["🦊 ďábel 河", "👩‍👩‍👧 é", COLOURS, " "])
def test_it_arrives_as_it_is_and_no_character_in_parts(web: httpx.Client, text: str) -> None:
    choice, events = forced(web, text)
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"
    assert not any("\ufffd" in data for data in events.data)


@pytest.mark.parametrize(
    ("stop", "seen"),
    [
        ("orange-yel", "red-"),
        ("-", "red"),
        ("r", ""),
        ("green", "red-orange-yellow-"),
        ("low-gr", "red-orange-yel"),
    ],
)
def test_nothing_of_a_stop_string_is_ever_shown(web: httpx.Client, stop: str, seen: str) -> None:
    choice, _ = forced(web, COLOURS, stop=[stop])  # and joined deltas are what is shown
    assert (choice["message"]["content"], choice["finish_reason"]) == (seen, "stop")
    choice, _ = forced(web, COLOURS, stop=[stop], include_stop_str_in_output=True)
    assert choice["message"]["content"] == seen + stop


def test_the_bytes_of_its_tokens_are_the_text_in_both_modes(web: httpx.Client) -> None:
    text = "🦊河"
    choice, events = forced(web, text, logprobs=True, top_logprobs=3)
    whole = choice["logprobs"]["content"]
    streamed = [
        entry
        for chunk in events.chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert len(whole) == events.objects[-1]["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in whole)
    for entries in (whole, streamed):
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text
    assert [entry["token"] for entry in whole] == [entry["token"] for entry in streamed]


def test_an_answer_that_ends_at_once_is_empty_and_counts_its_end(web: httpx.Client) -> None:
    asked = body(allowed_token_ids=[2], max_tokens=64)
    whole = web.post(CHAT, json=asked).json()
    events = read(web.post(CHAT, json={**asked, "stream": True}))
    assert whole["choices"][0]["message"]["content"] == events.text() == ""
    assert whole["choices"][0]["finish_reason"] == "stop" and events.finishes() == ["stop"]
    assert whole["usage"]["completion_tokens"] == 1
