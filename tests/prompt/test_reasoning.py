"""Thinking is told from answer, however a stream is cut, by vLLM's own parsers on a real tokenizer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.tokenizers import get_tokenizer

from service.chat.reading import Reading
from service.chat.spelling import Alphabet
from service.engine.protocol import Delta, EngineStartError
from service.engine.vllm.reasoning import ReasoningParser
from tests.prompt.conftest import Model
from tests.prompt.published import published
from tests.tokens import deltas, merged

PARSERS = ("qwen3", "deepseek_r1")
PROMPT = [1, 2, 3]
PIECES = st.sampled_from(
    ["Hm", " so", "<", "</", "think", ">", "🏳️‍🌈", "\n\n", " 汉字", "\t", " x < y", "a</b>", "é"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)
STOPS = st.sampled_from(["", "nk>", "\n\n", "zzzz", "x <", "</think>\n"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Qwen3's, as vLLM hands it to its parsers."""
    return get_tokenizer(str(published("qwen3")))


def said(model: Model, parser: ReasoningParser, stream: Sequence[Delta]) -> Delta:
    """All that a reader gets, in one."""
    alphabet = Alphabet(model.renderer.vocabulary.bytes_by_id)
    reading = Reading(alphabet, 1, parser.thinkings(PROMPT, 1, {}), model.renderer.vocabulary.special_ids)
    whole = Delta(0, "", [])
    told: list[Any] = []
    for delta in stream:
        given_tokens = len(delta.token_ids)
        reading.read(delta)
        whole.reasoning += delta.reasoning
        whole.text += delta.text
        whole.reasoning_tokens += delta.reasoning_tokens
        told += [*delta.reasoning_logprobs, *delta.logprobs]
        whole.token_ids = [*whole.token_ids, *range(given_tokens)]
    whole.logprobs = told
    return whole


@pytest.mark.parametrize("name", PARSERS)
def test_thought_and_answer_are_the_same_however_the_stream_is_cut(
    qwen3: Model, tokenizer: Any, name: str
) -> None:
    parser = ReasoningParser(name, tokenizer)
    backend = qwen3.renderer._tokenizer

    @given(thought=TEXTS, answer=TEXTS, opens=st.booleans(), stop=STOPS, seed=st.integers(0, 2**16))
    def holds(thought: str, answer: str, opens: bool, stop: str, seed: int) -> None:
        text = ("<think>" if opens else "") + thought + "</think>" + answer
        ids = backend.encode(text, add_special_tokens=False).ids
        one = said(qwen3, parser, list(deltas(backend, ids, stop=stop, skip_special=False)))
        other = said(qwen3, parser, merged(list(deltas(backend, ids, stop=stop, skip_special=False)), seed))
        assert (one.reasoning, one.text, one.reasoning_tokens) == (
            other.reasoning,
            other.text,
            other.reasoning_tokens,
        )
        assert len(one.logprobs) == len(one.token_ids) == len(other.logprobs)
        if not stop:
            assert (one.reasoning, one.text) == (thought, answer)

    holds()


@pytest.mark.parametrize("name", PARSERS)
def test_an_answer_cut_while_thinking_has_no_content(qwen3: Model, tokenizer: Any, name: str) -> None:
    backend = qwen3.renderer._tokenizer
    ids = backend.encode("<think>So x < y, and", add_special_tokens=False).ids
    cut = said(qwen3, ReasoningParser(name, tokenizer), list(deltas(backend, ids, skip_special=False)))
    assert (cut.text, cut.reasoning, cut.reasoning_tokens) == ("", "So x < y, and", len(ids))


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_long_and_plain_does_not_go_through_the_parser(
    qwen3: Model, tokenizer: Any, name: str
) -> None:
    parser = ReasoningParser(name, tokenizer)
    [thinking] = parser.thinkings(PROMPT, 1, {})
    words = qwen3.renderer._tokenizer.encode(" so it goes on" * 100, add_special_tokens=False).ids
    for token_id in random.Random(0).choices(words, k=400):
        assert thinking.read(qwen3.text([token_id]), token_id)[1] == ""
    assert len(thinking._text) < 20  # type: ignore[attr-defined]


def test_a_prompt_that_has_ended_the_thinking_leaves_none_to_read(qwen3: Model, tokenizer: Any) -> None:
    prompt = qwen3.prompt([{"role": "user", "content": "Hi"}], template_kwargs={"enable_thinking": False})
    assert (
        ReasoningParser("qwen3", tokenizer).thinkings(prompt.token_ids, 2, {"enable_thinking": False}) == []
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [("qwen33", "did you mean qwen3"), ("deepseek_r1", "does not fit this model's tokenizer")],
)
def test_a_parser_that_cannot_be_used_is_told_at_the_start(smollm2: Model, name: str, says: str) -> None:
    with pytest.raises(EngineStartError, match=says):
        ReasoningParser(name, smollm2.tokenizer)
