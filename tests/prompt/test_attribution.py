"""Every token belongs to exactly one segment; a token across a border is the template's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings

from service.errors import InvalidTemplate
from service.prompt import Prompt, RenderOptions
from service.prompt.encoders import Encoder, PieceEncoder, WholeEncoder
from service.prompt.layout import runs_of
from service.prompt.pieces import PieceCache
from service.prompt.piecewise import Piecewise
from tests.prompt.conftest import Model
from tests.prompt.small import byte_level, renderer, transformers_of, word_pieces
from tests.prompt.talks import Message, talks

HELLO: Message = {"role": "user", "content": "Hello there"}
TOOLS = [{"type": "function", "function": {"name": "sounding", "parameters": {}}}]


def rendered(prompt: Prompt, model: Model) -> list[tuple[int | None, str, str]]:
    return [(s.message, s.kind, model.text(prompt.token_ids[s.start : s.end])) for s in prompt.segments]


@settings(max_examples=60)
@given(messages=talks())
def test_segments_cover_every_token_once_and_sums_agree(model: Model, messages: list[Message]) -> None:
    prompt = model.prompt(messages)
    assert [segment.start for segment in prompt.segments] == [0, *(s.end for s in prompt.segments[:-1])]
    assert prompt.segments[-1].end == len(prompt.token_ids)
    assert prompt.content_tokens + prompt.template_tokens == len(prompt.token_ids)
    of_messages = sum(content + template for content, template in prompt.message_tokens)
    assert of_messages + sum(prompt.shared_tokens.values()) == len(prompt.token_ids)
    assert len(prompt.message_tokens) == len(messages)


@dataclass(frozen=True)
class Both:
    """A model's tokenizer used in both ways: piece by piece, and on the whole text."""

    model: Model
    pieces: Encoder
    whole: Encoder

    @classmethod
    def of(cls, model: Model) -> Both:
        vocabulary = model.renderer.vocabulary
        whole = WholeEncoder(model.tokenizer.backend_tokenizer, vocabulary)
        return cls(model, PieceEncoder(vocabulary), whole)

    def agree(self, messages: list[Message]) -> bool:
        """Whether ids and counts by run are the same."""
        try:
            text = self.model.renderer.template.render(messages, RenderOptions(), limit_s=5)
        except InvalidTemplate:
            return True
        return counted(text, self.pieces) == counted(text, self.whole)


def counted(text: str, encoder: Encoder) -> tuple[list[int], list[int]]:
    piecewise, runs = Piecewise(encoder, PieceCache(0)), runs_of(text)
    plan = piecewise.plan(text, runs, "")
    piecewise.fill(plan)
    return plan.assembled()


@pytest.fixture(scope="session")
def both(model: Model) -> Both:
    return Both.of(model)


@settings(max_examples=60)
@given(messages=talks(tools=True))
def test_counts_are_those_of_the_tokenizers_offsets_on_the_whole_text(
    both: Both, messages: list[Message]
) -> None:
    assert both.agree(messages)


@pytest.fixture(scope="module", params=["composing", "prepending"])
def changing(request: pytest.FixtureRequest) -> Both:
    """Tokenizers that change the text they read, so that lengths of tokens say nothing about places."""
    tokenizer = byte_level(compose=True) if request.param == "composing" else word_pieces(prepend="always")
    return Both.of(Model(request.param, transformers_of(tokenizer), renderer(tokenizer)))


@settings(max_examples=60)
@given(messages=talks())
def test_counts_are_exact_for_tokenizers_that_change_the_text(
    changing: Both, messages: list[Message]
) -> None:
    assert changing.agree(messages)


def test_a_small_conversation_reads_as_it_was_written(smollm2: Model) -> None:
    system = {"role": "system", "content": "Be brief."}
    prompt = smollm2.prompt([system, HELLO, {"role": "assistant", "content": "Hi"}, HELLO])
    assert rendered(prompt, smollm2) == [
        (0, "template", "<|im_start|>system\n"),
        (0, "content", "Be brief."),
        (0, "template", "<|im_end|>\n"),
        (1, "template", "<|im_start|>user\n"),
        (1, "content", "Hello there"),
        (1, "template", "<|im_end|>\n"),
        (2, "template", "<|im_start|>assistant\n"),
        (2, "content", "Hi"),
        (2, "template", "<|im_end|>\n"),
        (3, "template", "<|im_start|>user\n"),
        (3, "content", "Hello there"),
        (3, "template", "<|im_end|>\n"),
        (None, "generation", "<|im_start|>assistant\n"),
    ]
    assert prompt.message_tokens == ((3, 5), (2, 5), (1, 6), (2, 5))
    assert prompt.shared_tokens == {"generation": 4}


def test_a_system_prompt_nobody_sent_is_the_templates(smollm2: Model) -> None:
    prompt = smollm2.prompt([HELLO])
    assert "named SmolLM" in prompt.text
    assert prompt.content_tokens == 2


def test_a_system_message_before_the_loop_has_the_markers_around_it(qwen3: Model) -> None:
    prompt = qwen3.prompt([{"role": "system", "content": "Be brief"}, HELLO])
    assert rendered(prompt, qwen3)[:3] == [
        (0, "template", "<|im_start|>system\n"),
        (0, "content", "Be brief"),
        (0, "template", "<|im_end|>\n"),
    ]


def test_a_system_message_moved_into_a_users_turn_stays_its_own(model: Model) -> None:
    prompt = model.prompt([{"role": "system", "content": "Be brief"}, HELLO])
    assert prompt.message_tokens[0].content == len(
        model.tokenizer.encode("Be brief", add_special_tokens=False)
    )


def test_tool_definitions_calls_and_results_are_told_apart(qwen3: Model) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "sounding", "arguments": '{"place": "Oslo"}'},
    }
    messages = [
        HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4 m"},
    ]
    prompt = qwen3.prompt(messages, tools=TOOLS)
    callers = [
        (m, kind, text) for m, kind, text in rendered(prompt, qwen3) if kind not in ("template", "generation")
    ]
    assert callers == [
        (None, "tools", '{"type": "function", "function": {"name": "sounding", "parameters": {}}'),
        (0, "content", "Hello there"),
        (1, "tool_calls", "sounding"),
        (1, "tool_calls", 'place": "Oslo'),
        (2, "content", "4 m"),
    ]
    assert prompt.shared_tokens["tools"] > 10


def test_a_token_across_a_border_is_the_templates() -> None:
    template = "{% for message in messages %}{{ 'ask the ' + message.content + '<|end|>' }}{% endfor %}"
    tokenizer = byte_level()
    ours = renderer(tokenizer, template)
    prompt = ours.render_blocking([{"role": "user", "content": "rivers again"}], RenderOptions())
    tokens = ours.token_strings(prompt.token_ids)
    across = tokens.index("Ġrivers")
    content = next(segment for segment in prompt.segments if segment.kind == "content")
    assert prompt.text == "ask the rivers again<|end|>"
    assert content.start == across + 1


def test_a_messages_tokens_follow_it_through_a_macro_and_a_loop_inside_the_loop() -> None:
    template = (
        "{% macro count(all) %}{% for m in all %}{{ loop.index0 if loop.last }}{% endfor %}{% endmacro %}"
        "{% for message in messages %}{{ '<|user|>' }}{{ count(messages) }}{{ message.content + '<|end|>' }}"
        "{% endfor %}{{ 'after' }}"
    )
    prompt = renderer(template=template).render_blocking([HELLO, HELLO], RenderOptions())
    assert prompt.text == "<|user|>1Hello there<|end|>" * 2 + "after"
    # Both digits were written when the macro's loop was at the second message.
    assert [tokens.template for tokens in prompt.message_tokens] == [2, 4]
    assert prompt.segments[-1].message is None


def test_a_generation_prompt_written_inside_the_loop_is_the_generation_prompt() -> None:
    template = (
        "{% for message in messages %}{{ message.content + '<|end|>' }}"
        "{% if loop.last and add_generation_prompt %}{{ '<|user|>' }}{% endif %}{{ '<|end|>' }}{% endfor %}"
    )
    ours = renderer(template=template)
    assert ours.render_blocking([HELLO], RenderOptions()).shared_tokens == {"generation": 1}
    without = ours.render_blocking([HELLO], RenderOptions(add_generation_prompt=False))
    assert without.shared_tokens == {}
