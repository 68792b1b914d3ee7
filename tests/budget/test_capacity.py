"""How many chats of one shape fit the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.budget.capacity import Cache, Shape, capacity
from service.budget.kv import KvCost
from service.errors import InvalidValue

IDLE = Cache(capacity_tokens=1_600, used_tokens=0, block_size=16)


def chats(shape: Shape, cache: Cache = IDLE, window: int = 4_096) -> tuple[int, int]:
    answer = capacity(shape, cache, window, KvCost(131_072))
    return answer.chats_now, answer.chats_idle


def test_a_chat_takes_whole_blocks() -> None:
    assert chats(Shape(100, 60)) == (10, 10)
    assert chats(Shape(100, 61)) == (9, 9)


def test_what_is_in_use_is_not_there_now() -> None:
    assert chats(Shape(100, 60), replace(IDLE, used_tokens=1_000)) == (3, 10)
    assert chats(Shape(100, 60), replace(IDLE, used_tokens=1_600)) == (0, 10)


def test_a_shared_beginning_is_held_once() -> None:
    answer = capacity(Shape(100, 60, cached_tokens=96), IDLE, 4_096, None)
    assert (answer.shared_tokens, answer.tokens_per_chat) == (96, 64)
    assert answer.chats_idle == (1_600 - 96) // 64


def test_only_whole_blocks_are_shared_and_never_the_last_token() -> None:
    assert capacity(Shape(100, 60, cached_tokens=95), IDLE, 4_096, None).shared_tokens == 80
    assert capacity(Shape(96, 64, cached_tokens=96), IDLE, 4_096, None).shared_tokens == 80


def test_a_chat_longer_than_the_window_fits_nowhere() -> None:
    answer = capacity(Shape(100, 60), IDLE, 159, None)
    assert not answer.fits_window
    assert (answer.chats_now, answer.chats_idle) == (0, 0)


def test_the_cost_of_a_token_comes_with_its_reservation() -> None:
    answer = capacity(Shape(1, 1), IDLE, 4_096, KvCost(131_072, "because"))
    assert (answer.kv_bytes_per_token, answer.approximate) == (131_072, "because")
    assert capacity(Shape(1, 1), IDLE, 4_096, None).kv_bytes_per_token is None


@pytest.mark.parametrize(
    ("counts", "param"),
    [
        ((0, 1), "prompt_tokens"),
        ((1, 0), "output_tokens"),
        ((5, 1, 6), "cached_tokens"),
        ((5, 1, -1), "cached_tokens"),
    ],
)
def test_counts_no_chat_can_have_are_refused_by_name(counts: tuple[int, ...], param: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Shape(*counts)
    assert refused.value.param == param


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    prompt = draw(st.integers(1, 300))
    return Shape(prompt, draw(st.integers(1, 300)), draw(st.integers(0, prompt)))


@given(shapes(), st.integers(0, 5_000), st.integers(0, 5_000), st.integers(1, 128))
def test_what_is_said_to_fit_fits_and_one_more_would_not(
    shape: Shape, total: int, used: int, block: int
) -> None:
    answer = capacity(shape, Cache(total, min(used, total), block), 4_096, None)
    whole = total // block * block
    taken = answer.shared_tokens + answer.chats_idle * answer.tokens_per_chat
    assert answer.chats_idle == 0 or taken <= whole
    assert taken + answer.tokens_per_chat > whole
    assert 0 <= answer.chats_now <= answer.chats_idle
    assert answer.shared_tokens + answer.tokens_per_chat >= shape.tokens
