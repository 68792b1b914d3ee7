"""Calls that a model makes of its own accord, read by vLLM's parsers behind ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from vllm.parser.abstract_parser import DelegatingParser

from service.engine.protocol import CallPlan, Delta, EngineStartError, Finish
from service.engine.vllm.tool_parser import TOGETHER_TOKENS, ToolParser, parser_for
from service.web.choice import Whole
from service.web.encode import message_body

TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}]
SAID = (
    "Let me see. "
    '<tool_call>\n{"name": "rain", "arguments": {"at": "Oslo <b>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "rain", "arguments": {"at": "Rome"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def tokenizer(embedded_model: Path) -> Any:
    """A tokenizer; this parser reads text only."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_model)


@pytest.fixture(scope="module")
def hermes(tokenizer: Any) -> ToolParser:
    """The parser of Hermes and Qwen3."""
    return ToolParser("hermes", tokenizer)


CALLS = {
    "hermes": SAID,
    "qwen3_coder": "So: <tool_call>\n<function=rain>\n<parameter=at>\nOslo <b>\n</parameter>\n</function>\n"
    "</tool_call>",
}


def heard(plan: CallPlan, said: str, widths: int | Sequence[int], finish: Finish = "stop") -> dict[str, Any]:
    """The message that comes of a text which arrives so many characters at a time, and why it ended."""
    whole = Whole()
    pieces, next_widths = [], cycle([widths] if isinstance(widths, int) else widths)
    while said:
        pieces.append(said[: (width := next(next_widths))])  # which may be no text at all
        said = said[width:]
    for at, piece in enumerate(pieces):
        delta = Delta(0, piece, [at + 100], finish if at == len(pieces) - 1 else None)
        plan.readers[0].read(delta)
        whole.add(delta)
    return {**message_body(whole), "finish": delta.finish}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("width", [1, 4, 23, 1000])
def test_text_and_calls_come_apart_however_they_arrive(hermes: ToolParser, stream: bool, width: int) -> None:
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=stream), SAID, width)
    assert made["content"].strip() == "Let me see."
    given = [json.loads(call["function"]["arguments"]) for call in made["tool_calls"]]
    assert given == [{"at": "Oslo <b>"}, {"at": "Rome"}]
    assert len({call["id"] for call in made["tool_calls"]}) == 2
    assert made["finish"] == "tool_calls"


def test_text_in_which_no_call_can_begin_goes_past_the_parser_and_is_shown_to_it_later(
    hermes: ToolParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    parse = DelegatingParser.parse_delta

    def watched(parser: Any, text: str, *rest: Any, **more: Any) -> Any:
        shown.append(text)
        return parse(parser, text, *rest, **more)

    monkeypatch.setattr(DelegatingParser, "parse_delta", watched)
    said = "It may rain. " * 20 + SAID
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=True), said, 5)
    assert "".join(shown) == said, "the parser has seen everything"
    assert len(shown) < len(said) / 5 - 40, "and most of the text in one piece"
    assert made["content"].strip() == ("It may rain. " * 20 + "Let me see.").strip()
    assert len(made["tool_calls"]) == 2


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@given(
    texts=st.lists(
        st.sampled_from(["Rain. ", "a < b", "{x: [1]}", "<b>", "</", "tool", "<tool_", "|", "\n"])
    ),
    widths=st.lists(st.integers(0, 9), min_size=1).filter(any),
)
def test_what_goes_past_the_parser_changes_nothing(
    tokenizer: Any, name: str, texts: list[str], widths: list[int]
) -> None:
    parser = ToolParser(name, tokenizer)
    said = "".join(texts) + CALLS[name] * (len(texts) % 2) or "So."
    asked = ToolParser(name, tokenizer)
    asked._added = None
    one, other = (
        heard(of.plan(TOOLS, 1, parallel=True, stream=True), said, widths) for of in (parser, asked)
    )
    for message in (one, other):
        for call in message.get("tool_calls", ()):
            del call["id"]
    assert one == other


@pytest.mark.parametrize("stream", [False, True])
def test_a_parser_that_stumbles_leaves_the_text_as_it_is(
    hermes: ToolParser, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def stumbles(*given: Any, **more: Any) -> Any:
        raise ValueError("what is this?")

    monkeypatch.setattr(DelegatingParser, "parse_delta", stumbles)
    monkeypatch.setattr(DelegatingParser, "parse", stumbles)
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=stream), SAID, 5)
    assert made["content"] == SAID


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_in_arguments_does_not_break_the_answer(hermes: ToolParser, stream: bool) -> None:
    said = '<tool_call>\n{"name": "rain", "arguments": {"at": "\\ud83d"}}\n</tool_call>'
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=stream), said, 7)
    [call] = made["tool_calls"]
    call["function"]["arguments"].encode()


def test_arguments_are_streamed_a_few_tokens_at_a_time(hermes: ToolParser) -> None:
    reader = hermes.plan(TOOLS, 1, parallel=True, stream=True).readers[0]
    call = '<tool_call>\n{"name": "rain", "arguments": {"at": "' + "Oslo " * 40 + '"}}\n</tool_call>'
    pieces = [call[at : at + 4] for at in range(0, len(call), 4)]
    told = []
    for at, piece in enumerate(pieces):
        delta = Delta(0, piece, [at + 100], "stop" if at == len(pieces) - 1 else None)
        reader.read(delta)
        told += [at] if delta.calls else []
    assert all(later - earlier <= TOGETHER_TOKENS for earlier, later in pairwise(told))
    assert len(pieces) / TOGETHER_TOKENS - 8 < len(told) < len(pieces) / TOGETHER_TOKENS + 8


@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_there_is_one(hermes: ToolParser, stream: bool) -> None:
    made = heard(hermes.plan(TOOLS, 1, parallel=False, stream=stream), SAID, 5)
    assert len(made["tool_calls"]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_calls_stays_as_it_is(hermes: ToolParser, stream: bool) -> None:
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=stream), "It is <b>dry</b> < there.", 3)
    assert made["content"] == "It is <b>dry</b> < there." and "tool_calls" not in made
    assert made["finish"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_says_so(hermes: ToolParser, stream: bool) -> None:
    made = heard(hermes.plan(TOOLS, 1, parallel=True, stream=stream), SAID[:60], 5, "length")
    assert made["finish"] == "length"


def test_strict_tools_are_held_to_their_schema(hermes: ToolParser) -> None:
    function = {"name": "rain", "strict": True, "parameters": {"type": "object", "properties": {}}}
    strict = hermes.plan([{"type": "function", "function": function}], 1, parallel=True, stream=True)
    assert strict.constraint is not None and strict.constraint.field == "tools"
    assert hermes.plan(TOOLS, 1, parallel=True, stream=True).constraint is None


def test_a_parser_nobody_has_stops_the_start(tokenizer: Any) -> None:
    with pytest.raises(EngineStartError, match="did you mean hermes"):
        ToolParser("hermez", tokenizer)


def test_a_template_tells_its_parser_where_that_is_clear() -> None:
    assert parser_for('{"<tool_call>"}') == "hermes"
    assert parser_for("<tool_call> <function=") == "qwen3_coder"
    assert parser_for("<|im_start|>") is None
