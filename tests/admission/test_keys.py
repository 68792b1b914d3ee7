"""Keys in requests, and new ones."""

from __future__ import annotations

import hashlib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.keys import LONGEST_KEY, bearer_key, new_key
from service.errors import Unauthenticated


@pytest.mark.parametrize(
    "value",
    [b"Bearer key", b"bearer key", b"BEARER key", b"Bearer key ", b" Bearer   key", b"Bearer key\t"],
)
def test_the_scheme_may_be_in_any_case_and_spaces_around_are_not_the_key(value: bytes) -> None:
    assert bearer_key([value]) == b"key"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Basic dXNlcjpwYXNz"],
        [b"key"],
        [b"Bearer one", b"Bearer two"],
        [b"Bearer same", b"Bearer same"],
        [b"Bearer " + b"x" * (LONGEST_KEY + 1)],
        [b"Bearer " + b"x" * 100_000],
    ],
)
def test_what_is_no_single_key_is_refused_with_401_and_a_challenge(values: list[bytes]) -> None:
    with pytest.raises(Unauthenticated) as refused:
        bearer_key(values)
    assert refused.value.status == 401
    assert refused.value.headers["www-authenticate"] == "Bearer"


@given(st.lists(st.binary(max_size=2_000), max_size=3))
def test_whatever_bytes_come_they_are_a_key_or_refused(values: list[bytes]) -> None:
    try:
        assert bearer_key(values)
    except Unauthenticated as refused:
        assert len(refused.message) < 200


def test_bytes_above_127_are_bytes_like_others() -> None:
    assert bearer_key([b"Bearer caf\xe9"]) == b"caf\xe9"


def test_a_new_key_is_long_differs_each_time_and_only_its_digest_is_in_the_table() -> None:
    one, two = new_key("acme"), new_key("acme")
    assert one.key != two.key
    assert len(one.key) > 40
    assert one.key not in one.table
    written = tomllib.loads(one.table)["tenant"]
    assert written == [{"name": "acme", "key_sha256": [hashlib.sha256(one.key.encode()).hexdigest()]}]


def test_a_new_key_is_not_in_its_own_repr() -> None:
    made = new_key("acme")
    assert made.key not in repr(made) + str(made)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\nb", "ä", "-a", "x" * 65])
def test_a_key_is_made_only_for_a_name_that_a_tenant_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        new_key(name)
