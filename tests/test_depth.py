"""How deep JSON may be nested."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.chat.depth import MAX_DEPTH, too_deep


@given(
    lists=st.lists(st.booleans(), max_size=2 * MAX_DEPTH),
    beside=st.lists(st.none() | st.integers() | st.text(), max_size=3),
)
def test_a_value_is_too_deep_from_one_level_above_the_limit_on(lists: list[bool], beside: list[Any]) -> None:
    value: Any = beside
    for as_list in lists:
        value = [*beside, value] if as_list else {"a": value, "b": 1}
    assert too_deep(value) is (len(lists) + 1 > MAX_DEPTH)


def test_no_depth_is_too_much_for_the_look() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert too_deep(value)
