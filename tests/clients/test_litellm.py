"""LiteLLM's SDK on the real service, as OpenAI's protocol and as a vLLM that somebody hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

Said = dict[str, Any]


@pytest.fixture(scope="module")
def heard(listen: Callable[[str], Said]) -> Said:
    """What the client says, by provider."""
    return listen("litellm")


@pytest.fixture(params=["openai", "hosted_vllm"])
def said(heard: Said, request: pytest.FixtureRequest) -> Said:
    """What it says of one provider."""
    one: Said = heard[request.param]
    return one


def test_it_gets_a_whole_answer_with_usage(said: Said) -> None:
    usage = said["whole"]["usage"]
    assert "Paris" in said["whole"]["text"]
    assert usage["prompt_tokens"] == 37
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_comes_in_pieces_and_says_the_same(said: Said) -> None:
    streamed, whole = said["streamed"], said["whole"]
    assert "".join(streamed["pieces"]) == streamed["text"] == whole["text"]
    assert len(streamed["pieces"]) > 4
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [streamed["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]


def test_two_async_answers_at_once_say_the_same(said: Said) -> None:
    assert said["async"] == [said["whole"]["text"]] * 2


def test_a_forced_call_has_arguments_that_parse(said: Said) -> None:
    assert said["called"]["finish"] == "tool_calls"
    for name, arguments in said["called"]["calls"]:
        assert name == "weather" and arguments["city"] in ("Rome", "Oslo")


def test_a_model_class_as_response_format_gives_an_object(said: Said) -> None:
    assert said["structured"].startswith("Capital(country=")


def test_refusals_are_the_client_s_own_exceptions(said: Said) -> None:
    assert said["errors"] == {
        "too long": "ContextWindowExceededError",
        "too long, streamed": "ContextWindowExceededError",
        "no such key": "AuthenticationError",
    }
