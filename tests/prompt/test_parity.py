"""Where nobody types a control token, the ids are those of transformers' own `apply_chat_template`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tests.prompt.conftest import Load, Model
from tests.prompt.small import byte_level, renderer, transformers_of, word_pieces
from tests.prompt.talks import Message, as_transformers_takes_them, talks, texts

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sounding",
            "description": "How deep the water is.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


def test_every_known_model_is_tokenized_piece_by_piece(model: Model) -> None:
    assert model.renderer.is_piecewise


@settings(max_examples=60)
@given(messages=talks(), generation=st.booleans())
def test_any_conversation_has_the_ids_of_apply_chat_template(
    model: Model, messages: list[Message], generation: bool
) -> None:
    prompt = model.prompt(messages, add_generation_prompt=generation)
    assert prompt.token_ids == model.reference(messages, add_generation_prompt=generation)


@settings(max_examples=60)
@given(messages=talks(tools=True), with_tools=st.booleans())
def test_tool_definitions_calls_and_results_have_the_ids_of_apply_chat_template(
    qwen3: Model, messages: list[Message], with_tools: bool
) -> None:
    tools = TOOLS if with_tools else None
    reference = qwen3.reference(as_transformers_takes_them(messages), tools=tools)
    assert qwen3.prompt(messages, tools=tools).token_ids == reference


@settings(max_examples=30)
@given(messages=talks(tools=True))
def test_a_template_that_wants_arguments_as_text_gets_them_so(
    deepseek: Model, messages: list[Message]
) -> None:
    assert deepseek.prompt(messages).token_ids == deepseek.reference(messages)


@settings(max_examples=30)
@given(thought=texts, said=texts)
def test_reasoning_is_taken_out_of_history_as_the_template_has_it(
    qwen3: Model, thought: str, said: str
) -> None:
    answer = {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{said}"}
    question = {"role": "user", "content": "How deep?"}
    messages = [question, answer, question]
    assert qwen3.prompt(messages).token_ids == qwen3.reference(messages)


def test_template_arguments_reach_the_template(qwen3: Model) -> None:
    messages = [{"role": "user", "content": "How deep?"}]
    prompt = qwen3.prompt(messages, template_kwargs={"enable_thinking": False})
    assert prompt.token_ids == qwen3.reference(messages, enable_thinking=False)
    assert prompt.text.endswith("<think>\n\n</think>\n\n")


def test_what_was_cached_changes_no_id(model: Model) -> None:
    messages = [{"role": "user", "content": "  How deep?\n"}, {"role": "assistant", "content": "\n4 m "}] * 5
    messages.append({"role": "user", "content": "And the tide?"})
    first = model.prompt(messages)
    assert model.prompt(messages) == first
    assert first.token_ids == model.reference(messages)


@pytest.mark.parametrize("name", ["llama-3.1", "gemma-3", "deepseek-v3"])
def test_the_beginning_token_is_there_exactly_once(load: Load, name: str) -> None:
    model = load(name)
    ids = model.prompt([{"role": "user", "content": "Hello"}]).token_ids
    assert ids.count(model.tokenizer.bos_token_id) == 1
    assert ids[0] == model.tokenizer.bos_token_id


@settings(max_examples=60)
@given(text=texts.filter(str.strip))
def test_a_continued_message_ends_where_its_text_ends(model: Model, text: str) -> None:
    messages = [{"role": "user", "content": "Begin."}, {"role": "assistant", "content": text}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert model.prompt(messages, **options).token_ids == model.reference(messages, **options)


SMALL = {
    "composing accents": byte_level(compose=True),
    "a space before the whole text": word_pieces(prepend="first"),
    "a space before every piece": word_pieces(prepend="always"),
    "markers that swallow white space": byte_level(
        markers=(
            AddedToken("<|begin|>", rstrip=True),
            AddedToken("<|user|>", lstrip=True, rstrip=True),
            AddedToken("<|end|>", lstrip=True),
        )
    ),
}


@pytest.fixture(scope="module", params=SMALL)
def small(request: pytest.FixtureRequest) -> Model:
    """Tokenizers with habits of their own."""
    return Model(request.param, transformers_of(SMALL[request.param]), renderer(SMALL[request.param]))


@settings(max_examples=60)
@given(messages=talks())
def test_a_tokenizer_with_habits_of_its_own_goes_piece_by_piece_too(
    small: Model, messages: list[Message]
) -> None:
    assert small.renderer.is_piecewise
    assert small.prompt(messages).token_ids == small.reference(messages)
