"""Events out of bytes, wherever the network cuts them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from loadtests.sse import EventReader

LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data: \xe2\x82\xac", b": note", b"id: 7", b"", b"data: : x"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def read(fragments: Iterable[bytes]) -> list[bytes]:
    """All events of some fragments."""
    reader = EventReader()
    return [data for fragment in fragments for data in reader.feed(fragment)]


def by_the_book(lines: list[bytes]) -> list[bytes]:
    """The same from lines that are already apart."""
    events, data = [], list[bytes]()
    for line in lines:
        if not line and data:
            events.append(b"\n".join(data))
        if not line:
            data = []
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
    return events


@given(st.lists(LINES), ENDS, st.data())
def test_cuts_anywhere_change_nothing(lines: list[bytes], end: bytes, draw: st.DataObject) -> None:
    text = b"".join(line + end for line in lines)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    fragments = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(fragments) == by_the_book(lines)


@given(st.lists(LINES))
def test_one_byte_at_a_time_is_enough(lines: list[bytes]) -> None:
    text = b"".join(line + b"\r\n" for line in lines)
    assert read(text[i : i + 1] for i in range(len(text))) == by_the_book(lines)


def test_a_character_cut_in_two_comes_out_whole() -> None:
    assert read([b"data: \xe2\x82", b"\xac\n\n"]) == ["€".encode()]


def test_comments_are_no_events() -> None:
    assert read([b": keep-alive\n\n: keep-alive\n\ndata: x\n\n"]) == [b"x"]


def test_an_event_that_has_not_ended_is_not_given() -> None:
    assert read([b"data: x\n"]) == []


def test_a_byte_order_mark_is_skipped_once() -> None:
    assert read([b"\xef\xbb\xbfdata: x\n\n"]) == [b"x"]
