"""Conversations for property-based tests: everything people write, and nothing a template would."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

CHUNKS = (
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "\x00"),
    *("Hello", "don't", "12345", "3.14", "def f(x):\n    return x", "https://a.b/?c=d", "None", "x" * 40),
    *("ünïcode", "e\N{COMBINING ACUTE ACCENT}", "東京", "\N{FOX FACE}", "\N{LOWER ONE EIGHTH BLOCK}"),
    *("<", ">", "|", "<|", "|>", "</", "{{", "}}", "{%", '"', "\\n", "\N{REPLACEMENT CHARACTER}"),
)
texts = st.lists(st.sampled_from(CHUNKS) | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(texts, values, max_size=3).map(json.dumps)


@st.composite
def talks(draw: st.DrawFn, *, system: bool = True, tools: bool = False) -> list[Message]:
    """A conversation of alternating turns, the last of them the user's."""
    messages: list[Message] = []
    if system and draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for _ in range(draw(st.integers(0, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        if tools and draw(st.booleans()):
            messages += draw(_calls())
        messages.append({"role": "assistant", "content": draw(texts)})
    return [*messages, {"role": "user", "content": draw(texts)}]


@st.composite
def _calls(draw: st.DrawFn) -> list[Message]:
    ids = [f"call{at:05}" for at in range(draw(st.integers(1, 2)))]
    calls = [
        {"id": at, "type": "function", "function": {"name": "sounding", "arguments": draw(arguments)}}
        for at in ids
    ]
    called = {"role": "assistant", "content": draw(texts), "tool_calls": calls}
    return [called, *({"role": "tool", "tool_call_id": at, "content": draw(texts)} for at in ids)]


def as_transformers_takes_them(messages: list[Message]) -> list[Message]:
    """The same messages with tool-call arguments parsed, which transformers leaves to its caller."""
    return [
        {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _parsed(call: Message) -> Message:
    return {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
