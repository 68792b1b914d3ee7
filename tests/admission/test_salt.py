"""Salts keep groups apart, and are of a form the engine takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.salt import cache_salt

SECRET = b"a secret of the server"
Group = tuple[str, str | None]
groups = st.tuples(st.text(max_size=6), st.none() | st.text(max_size=6))


@given(groups, groups)
def test_two_groups_have_the_same_salt_only_if_they_are_the_same(one: Group, two: Group) -> None:
    assert (cache_salt(SECRET, *one) == cache_salt(SECRET, *two)) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("acme", None), ("Acme", None)),
        (("a-b", None), ("a_b", None)),
        (("a", "b"), ("ab", None)),
        (("a", "bc"), ("ab", "c")),
        (("a", ""), ("a", None)),
        (("a", None), ("a ", None)),
        (("a", None), ("a\0", None)),
        (("\0\0\0\0\0\0\0\1a", None), ("a", "")),
        (("é", None), ("e\u0301", None)),
    ],
)
def test_names_that_differ_by_case_separator_or_length_differ(one: Group, two: Group) -> None:
    assert cache_salt(SECRET, *one) != cache_salt(SECRET, *two)


def test_without_the_secret_no_salt_can_be_made() -> None:
    assert cache_salt(SECRET, "acme") != cache_salt(b"another", "acme")


@given(st.text(), st.none() | st.text())
def test_a_salt_is_64_hexadecimal_digits_and_stays_the_same(group: str, adapter: str | None) -> None:
    salt = cache_salt(SECRET, group, adapter)
    assert re.fullmatch("[0-9a-f]{64}", salt)
    assert salt == cache_salt(SECRET, group, adapter)
