"""Logprobs of the real engine: finite, in place, and their bytes are the text."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import body
from tests.small.conftest import VOCABULARY
from tests.sse import read

pytestmark = pytest.mark.engine

SAMPLED = {"temperature": 1.0, "seed": 7, "max_tokens": 60, "ignore_eos": True}


def answers(web: httpx.Client, **fields: Any) -> tuple[list[dict[str, Any]], int]:
    """The choices of a whole answer, and how many tokens it has."""
    made = web.post("/v1/chat/completions", json=body(**{**SAMPLED, "logprobs": True, **fields})).json()
    return made["choices"], made["usage"]["completion_tokens"]


def spelled(entries: list[dict[str, Any]]) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"stop": ["e", "qu"], "n": 4},
        {"stop": ["e"], "include_stop_str_in_output": True},
        {"skip_special_tokens": False, "logit_bias": {"0": 12, "2": 12}},
        {"skip_special_tokens": True, "logit_bias": {"0": 12, "2": 12}},
        {"min_tokens": 5, "ignore_eos": False, "logit_bias": {"2": 100}},
        {"top_logprobs": 20, "allowed_token_ids": [50, 60, 70]},
        {"temperature": 0},
    ],
)
def test_bytes_are_the_text_and_every_token_is_told(web: httpx.Client, fields: dict[str, Any]) -> None:
    choices, tokens = answers(web, **{"top_logprobs": 3, **fields})
    assert sum(len(choice["logprobs"]["content"]) for choice in choices) == tokens
    for choice in choices:
        content = choice["message"]["content"]
        assert spelled(choice["logprobs"]["content"]).rstrip("\ufffd") == content.rstrip("\ufffd")
        for entry in choice["logprobs"]["content"]:
            told = [entry["logprob"], *(likely["logprob"] for likely in entry["top_logprobs"])]
            assert all(-9999.0 <= logprob <= 0 for logprob in told)
            assert len(entry["top_logprobs"]) == fields.get("top_logprobs", 3)


def test_a_stream_tells_the_same_and_each_chunk_its_own(web: httpx.Client) -> None:
    fields = {"top_logprobs": 2, "n": 2, "stop": ["zz", "the"]}
    choices, _ = answers(web, **fields)
    events = read(
        web.post("/v1/chat/completions", json=body(**{**SAMPLED, "logprobs": True, "stream": True, **fields}))
    )
    for index, choice in enumerate(choices):
        chunks = [c["choices"][0] for c in events.chunks if c["choices"][0]["index"] == index]
        told = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
        assert [(entry["token"], entry["bytes"]) for entry in told] == [
            (entry["token"], entry["bytes"]) for entry in choice["logprobs"]["content"]
        ]
        for chunk in chunks[:-1]:
            assert spelled(chunk["logprobs"]["content"]) == chunk["delta"]["content"]


def test_an_emoji_over_several_tokens_has_its_bytes_among_them(web: httpx.Client) -> None:
    ids = web.post("/tokenize", json={"prompt": "👩‍👩‍👧", "add_special_tokens": False}).json()["tokens"]
    [choice], _ = answers(web, allowed_token_ids=ids, max_tokens=200, skip_special_tokens=False)
    text = choice["message"]["content"]
    assert spelled(choice["logprobs"]["content"]).rstrip("\ufffd") == text.rstrip("\ufffd")
    assert any("\ufffd" in entry["token"] for entry in choice["logprobs"]["content"])


def test_a_bias_beyond_the_vocabulary_is_refused_and_the_engine_lives(web: httpx.Client) -> None:
    refused = web.post("/v1/chat/completions", json=body(logit_bias={str(VOCABULARY): 5}))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "logit_bias"
    assert answers(web)[1] == 60
