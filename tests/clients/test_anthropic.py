"""The official Anthropic client on the real service: whole, streamed, counted, tools, parsed, refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

Said = dict[str, Any]


@pytest.fixture(scope="module")
def said(listen: Callable[[str], Said]) -> Said:
    """What the client says."""
    return listen("anthropic")


def test_it_gets_a_whole_answer_and_the_prompt_is_as_long_as_was_counted(said: Said) -> None:
    whole = said["whole"]
    assert "Paris" in whole["text"] and whole["stop"] == "end_turn" and whole["request_id"]
    prompt_tokens, output_tokens = whole["usage"]
    assert prompt_tokens == whole["counted"] and 1 < output_tokens <= 48


def test_a_stream_comes_in_pieces_and_says_the_same(said: Said) -> None:
    streamed, whole = said["streamed"], said["whole"]
    assert "".join(streamed["pieces"]) == streamed["text"] == whole["text"]
    assert len(streamed["pieces"]) > 4
    assert streamed["usage"][1] == whole["usage"][1]


def test_two_async_answers_at_once_say_the_same(said: Said) -> None:
    one, other = said["async"]
    assert one == other and "Paris" in one


def test_a_forced_call_has_its_input_whole_and_streamed_and_is_answered(said: Said) -> None:
    called = said["called"]
    assert called["stop"] == "tool_use"
    assert {called["whole"]["city"], called["streamed"]["city"]} <= {"Rome", "Oslo"}
    assert called["after"]


def test_an_answer_is_parsed_into_the_model_class(said: Said) -> None:
    assert said["parsed"].startswith("Capital(country=")


def test_refusals_are_the_client_s_own_exceptions(said: Said) -> None:
    assert said["errors"] == {
        "too long": ["BadRequestError", True, True],
        "too long, streamed": ["BadRequestError", True, True],
        "no such model": ["NotFoundError", False, True],
        "no such key": ["AuthenticationError", False, True],
    }
