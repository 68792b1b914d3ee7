"""The official OpenAI client on the real service: sync, async, parsed, raw, refused, and patient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

Said = dict[str, Any]


@pytest.fixture(scope="module")
def said(listen: Callable[[str], Said]) -> Said:
    """What the client says."""
    return listen("openai")


def test_it_gets_a_whole_answer_with_exact_usage_and_the_request_s_id(said: Said) -> None:
    whole = said["whole"]
    assert "Paris" in whole["text"] and whole["finish"] == "stop"
    usage = whole["usage"]
    assert usage["prompt_tokens"] == 37 and usage["completion_tokens"] > 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert whole["request_id"]


def test_a_stream_comes_in_pieces_and_says_the_same(said: Said) -> None:
    streamed = said["streamed"]
    assert "".join(streamed["pieces"]) == said["whole"]["text"]
    assert len(streamed["pieces"]) > 4
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [streamed["usage"][name] for name in counts] == [said["whole"]["usage"][name] for name in counts]


def test_two_async_streams_at_once_say_the_same(said: Said) -> None:
    assert said["async"] == [said["whole"]["text"]] * 2


def test_an_answer_is_parsed_into_the_model_class_whole_and_streamed(said: Said) -> None:
    parsed = said["parsed"]
    assert parsed["whole"].startswith("Capital(country=") and parsed["streamed"].startswith(
        "Capital(country="
    )
    assert {"chunk", "content.delta", "content.done"} <= set(parsed["events"])


def test_a_forced_call_is_parsed_into_its_arguments_and_answered(said: Said) -> None:
    called = said["called"]
    assert called["whole"].startswith("Weather(city=") and called["streamed"].startswith("Weather(city=")
    assert called["finish"] == "tool_calls"
    assert called["after"]


def test_raw_headers_say_what_was_done(said: Said) -> None:
    headers = said["raw"]["headers"]
    assert headers["x-budget-action"] == "none" and headers["x-budget-max-output-tokens"] == "4"
    assert headers["x-request-id"] and "server-timing" in headers
    assert said["raw"]["text"]


def test_models_are_listed_and_found_by_their_name(said: Said) -> None:
    assert said["models"] == ["smollm2-135m-instruct"]


def test_refusals_are_the_client_s_own_exceptions(said: Said) -> None:
    overflow = ["BadRequestError", "context_length_exceeded", "messages", True]
    assert said["errors"] == {
        "too long": overflow,
        "too long, streamed": overflow,
        "no such model": ["NotFoundError", "model_not_found", "model", True],
        "no such key": ["AuthenticationError", "invalid_api_key", None, True],
        "wrong value": ["BadRequestError", "invalid_value", "temperature", True],
    }


def test_a_429_is_asked_again_when_its_retry_after_says_and_then_answered(said: Said) -> None:
    *refused, answered = said["patient"]["seen"]
    assert refused and refused == [[429, "1"]] * len(refused) and answered == [200, None]
    assert said["patient"]["text"] == said["whole"]["text"]
