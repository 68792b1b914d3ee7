"""Forced tool calls, taken apart from their text however that is cut into deltas."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.chat.calls import CallList, NamedCall
from service.engine.protocol import CallReader, Delta, Finish
from service.web.choice import Whole
from service.web.encode import message_body

names = st.from_regex(re.compile(r"[A-Za-z0-9_-]{1,12}", re.ASCII), fullmatch=True)
text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"{}[],:'), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
calls = st.lists(st.tuples(names, st.dictionaries(text, values, max_size=3)), min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 400), max_size=12)


def read(reader: CallReader, said: str, cuts: Sequence[int], finish: Finish = "stop") -> list[Delta]:
    """The deltas of a text cut at these places, as a reader leaves them."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(said)), len(said)]
    pieces = [said[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    deltas = [Delta(0, piece, [1]) for piece in pieces]
    deltas[-1].finish = finish
    for delta in deltas:
        reader.read(delta)
    return deltas


def together(deltas: Sequence[Delta]) -> list[tuple[str, str]]:
    """Name and arguments of each call, put together as the answer that is not streamed does it."""
    whole = Whole()
    for delta in deltas:
        whole.add(delta)
    made = message_body(whole).get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in made]


def written(made: Sequence[tuple[str, Any]]) -> str:
    """A list of calls as the constraint has it."""
    each = [{"name": name, "parameters": arguments} for name, arguments in made]
    return json.dumps(each, separators=(",", ":"), ensure_ascii=False)


@given(made=calls, cuts=cuts)
def test_a_list_of_calls_gives_the_same_calls_however_it_is_cut(
    made: list[tuple[str, Any]], cuts: list[int]
) -> None:
    deltas = read(CallList([name for name, _ in made]), written(made), cuts)
    assert [(name, json.loads(arguments)) for name, arguments in together(deltas)] == made
    assert "".join(delta.text for delta in deltas) == ""
    assert deltas[-1].finish == "tool_calls"


@given(made=calls, cuts=cuts)
def test_each_call_has_one_id_and_each_delta_one_piece_of_it(
    made: list[tuple[str, Any]], cuts: list[int]
) -> None:
    deltas = read(CallList([]), written(made), cuts)
    ids = [piece.id for delta in deltas for piece in delta.calls if piece.id is not None]
    assert len(set(ids)) == len(ids) == len(made)
    for delta in deltas:
        indexes = [piece.index for piece in delta.calls]
        assert len(set(indexes)) == len(indexes)


@given(made=calls, cuts=cuts, kept=st.integers(0, 300))
def test_a_list_that_is_cut_off_stays_a_list_of_calls(
    made: list[tuple[str, Any]], cuts: list[int], kept: int
) -> None:
    said = written(made)[:kept]
    deltas = read(CallList([name for name, _ in made]), said, cuts, "length")
    found = together(deltas)
    assert [name for name, _ in found] == [name for name, _ in made][: len(found)] or len(found) == 1
    assert all(arguments in said for _, arguments in found)
    assert deltas[-1].finish == "length" and not any(delta.text for delta in deltas)


def test_a_call_cut_off_in_its_name_is_told_where_only_one_can_be_meant() -> None:
    said = '[{"name":"get_w'
    assert together(read(CallList(["get_weather", "get_time"]), said, [], "length")) == [("get_weather", "")]
    assert together(read(CallList(["get_weather", "get_wind"]), said, [], "length")) == []


@given(arguments=st.dictionaries(text, values, max_size=3), cuts=cuts)
def test_a_named_call_is_its_arguments(arguments: dict[str, Any], cuts: list[int]) -> None:
    said = json.dumps(arguments)
    deltas = read(NamedCall("f"), said, cuts)
    assert together(deltas) == [("f", said)]
    assert deltas[-1].finish == "tool_calls"
