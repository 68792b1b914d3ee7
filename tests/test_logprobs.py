"""Logprobs on the wire: shape, what goes with which chunk, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from service.engine.protocol import Delta, TokenLogprob
from tests.conftest import Chat
from tests.scripted import ScriptedEngine
from tests.serving import Running
from tests.sse import read


def spell(server: Running, engine: ScriptedEngine, *parts: str) -> None:
    """Script an answer: one token a part, two likely ones with each."""
    steps = []
    for at, part in enumerate(parts):
        [token_id] = server.renderer._tokenizer.encode(part, add_special_tokens=False).ids
        told = TokenLogprob(token_id, -0.5, ((token_id, -0.5), (token_id + 1, -9999.0)))
        steps.append(Delta(0, part, [token_id], "stop" if at == len(parts) - 1 else None, logprobs=[told]))
    engine.script(*steps)


def test_each_chunk_has_the_logprobs_of_its_tokens(
    server: Running, engine: ScriptedEngine, chat: Chat
) -> None:
    spell(server, engine, "one", " two", " three")
    events = read(chat(stream=True, logprobs=True, top_logprobs=2))
    choices = [chunk["choices"][0] for chunk in events.chunks]
    for choice, text in zip(choices, ["one", " two", " three"], strict=True):
        [entry] = choice["logprobs"]["content"]
        assert choice["delta"]["content"] == text == entry["token"] == bytes(entry["bytes"]).decode()
        assert entry["logprob"] == -0.5
        assert [likely["logprob"] for likely in entry["top_logprobs"]] == [-0.5, -9999.0]
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}


def test_streamed_and_whole_logprobs_are_the_same(
    server: Running, engine: ScriptedEngine, chat: Chat
) -> None:
    spell(server, engine, "one", " two", " three")
    events = read(chat(stream=True, logprobs=True, top_logprobs=1))
    spell(server, engine, "one", " two", " three")
    [choice] = chat(logprobs=True, top_logprobs=1).json()["choices"]
    streamed = [entry for chunk in events.chunks for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert choice["logprobs"] == {"content": streamed, "refusal": None}


def test_a_token_that_is_left_out_of_the_text_has_no_bytes(engine: ScriptedEngine, chat: Chat) -> None:
    engine.script(Delta(0, "", [2], "stop", logprobs=[TokenLogprob(2, -0.1)]))  # <|im_end|>
    [choice] = chat(logprobs=True).json()["choices"]
    assert choice["logprobs"]["content"] == [
        {"token": "<|im_end|>", "logprob": -0.1, "bytes": [], "top_logprobs": []}
    ]


def test_nobody_gets_logprobs_without_asking(engine: ScriptedEngine, chat: Chat) -> None:
    assert chat().json()["choices"][0]["logprobs"] is None
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in read(chat(stream=True)).chunks)
    assert all(work.sampling.top_logprobs is None for work in engine.started)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False}, None),
        ({"logprobs": None, "top_logprobs": None}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ],
)
def test_the_engine_is_asked_for_as_many_as_are_wanted(
    engine: ScriptedEngine, chat: Chat, fields: dict[str, Any], wanted: int | None
) -> None:
    assert chat(**fields).status_code == 200
    assert engine.started[0].sampling.top_logprobs == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ],
)
def test_what_cannot_be_told_is_a_400_that_names_the_field(
    engine: ScriptedEngine, chat: Chat, fields: dict[str, Any], param: str
) -> None:
    response = chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not engine.started
