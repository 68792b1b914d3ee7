"""When tokens come."""

from __future__ import annotations

import pytest

from service.budget.pace import Pace

EXAMPLE = Pace(prefill_s=0.8, tokens_per_s=25)


def test_the_worked_example_comes_out() -> None:
    assert EXAMPLE.first_token_s == pytest.approx(0.84)
    assert EXAMPLE.total_s(180) == pytest.approx(8.0)


def test_streaming_moves_the_first_byte_and_not_the_last() -> None:
    assert EXAMPLE.first_byte_s(180, stream=True) == EXAMPLE.first_token_s
    assert EXAMPLE.first_byte_s(180, stream=False) == EXAMPLE.total_s(180)


def test_an_answer_of_one_token_ends_with_its_first() -> None:
    assert EXAMPLE.total_s(1) == EXAMPLE.first_token_s
