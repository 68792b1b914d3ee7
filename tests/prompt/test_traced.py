"""Traced text is the same text, and knows of each character where it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.prompt.traced import LOOSE, UNKNOWN, Origin, Traced, join, mark, origin_of, spans_of, whole

CALLER = Origin(0, "content")
letters = st.text("ab \n", max_size=8)


@st.composite
def mixed(draw: st.DrawFn) -> str:
    """The template's text in lower case, the caller's in upper case: a character tells where it is from."""
    parts = draw(st.lists(st.tuples(letters, st.booleans()), max_size=4))
    return join(whole(text.upper(), CALLER) if callers else text for text, callers in parts)


def origins(text: str) -> list[bool]:
    """Of each character, whether it is the caller's."""
    callers = [False] * len(text)
    for start, end, _ in spans_of(text):
        callers[start:end] = [True] * (end - start)
    return callers


def tells_the_truth(text: str) -> bool:
    return all(
        callers == character.isupper()
        for callers, character in zip(origins(text), str.__str__(text), strict=True)
        if character.isalpha()
    )


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "strip": lambda text: text.strip(),
    "strip a": lambda text: text.strip("aA"),
    "lstrip": lambda text: text.lstrip(),
    "rstrip": lambda text: text.rstrip("b\n"),
    "removeprefix": lambda text: text.removeprefix("a"),
    "removesuffix": lambda text: text.removesuffix("B"),
    "split": lambda text: text.split(),
    "split once": lambda text: text.split(None, 1),
    "split at a": lambda text: text.split("a"),
    "split at AB": lambda text: text.split("AB", 2),
    "rsplit": lambda text: text.rsplit(None, 1),
    "rsplit at b": lambda text: text.rsplit("b", 1),
    "splitlines": lambda text: text.splitlines(),
    "splitlines with ends": lambda text: text.splitlines(True),
    "partition": lambda text: text.partition("B"),
    "rpartition": lambda text: text.rpartition("a"),
    "slice": lambda text: text[1:-1],
    "empty slice": lambda text: text[3:1],
    "backwards": lambda text: text[::-1],
    "iterate": lambda text: list(text),
    "replace": lambda text: text.replace("a", "b"),
    "replace one": lambda text: text.replace("A", "", 1),
    "replace nothing": lambda text: text.replace("", "-"),
    "join": lambda text: text.join(["b", "a", "b"]),
    "add": lambda text: text + "a",
    "add to": lambda text: "a" + text,
    "add itself": lambda text: text + text,
    "str": lambda text: str(text),
}
INEXACT = {"backwards", "replace nothing"}


@pytest.mark.parametrize("name", OPERATIONS)
@given(text=mixed())
def test_every_operation_gives_what_str_gives_and_keeps_each_characters_origin(name: str, text: str) -> None:
    ours = OPERATIONS[name](text)
    assert ours == OPERATIONS[name](str.__str__(text))
    results = [ours] if isinstance(ours, str) else ours
    if name not in INEXACT:
        assert all(map(tells_the_truth, results))
    elif spans_of(text):
        assert all(all(origins(result)) for result in results)


@given(text=mixed(), at=st.integers(-9, 8))
def test_one_character_is_found_as_in_any_text(text: str, at: int) -> None:
    plain = str.__str__(text)
    if not -len(plain) <= at < len(plain):
        with pytest.raises(IndexError):
            text[at]
    else:
        assert text[at] == plain[at]
        assert tells_the_truth(text[at])


@given(parts=st.lists(mixed()), sep=mixed())
def test_joining_keeps_each_characters_origin(parts: list[str], sep: str) -> None:
    joined = join(parts, sep)
    assert joined == str.__str__(sep).join(parts)
    assert tells_the_truth(joined)


def test_it_is_equal_to_and_hashes_as_the_same_text() -> None:
    text: str = whole("abc", CALLER)
    assert text == "abc"
    assert {text: 1}["abc"] == 1
    assert "b" in text


def test_what_is_empty_keeps_its_place() -> None:
    text = "<" + whole("  ", CALLER).strip() + ">"
    assert text == "<>"
    assert spans_of(text) == ((1, 1, CALLER),)


def test_a_part_that_holds_nothing_of_the_callers_is_a_plain_text() -> None:
    text = "template" + whole("caller", CALLER)
    assert type(text[:8]) is str
    assert isinstance(text[:9], Traced)


def test_marks_move_with_the_text() -> None:
    begins = Origin(1, "template")
    text = "ab" + mark(begins) + "cd"
    assert spans_of(text[1:]) == ((1, 1, begins),)
    assert spans_of(text[3:]) == ()


def test_the_origin_of_a_value_is_that_of_its_first_text() -> None:
    text = whole("x", CALLER)
    assert origin_of(["a", {"b": (1, text)}]) == CALLER
    assert origin_of({text: None}) == CALLER
    assert origin_of(["a", 1, None, {"b": True}]) == LOOSE
    assert origin_of(b"bytes may hold anything") == UNKNOWN
    with pytest.raises(TypeError):
        _ = text + 1  # type: ignore[operator]
