"""LangChain's ChatOpenAI on the real service: chains, tools, structured output, its own overflow error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

Said = dict[str, Any]


@pytest.fixture(scope="module")
def said(listen: Callable[[str], Said]) -> Said:
    """What the client says."""
    return listen("langchain")


def test_it_gets_a_whole_answer_with_usage(said: Said) -> None:
    usage = said["whole"]["usage"]
    assert "Paris" in said["whole"]["text"] and said["whole"]["finish"] in ("stop", "length")
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert "cache_read" in usage["input_token_details"]


def test_a_stream_comes_in_pieces_and_ends_with_usage(said: Said) -> None:
    assert "Paris" in "".join(said["streamed"]["pieces"])
    assert len([piece for piece in said["streamed"]["pieces"] if piece]) > 4
    assert said["streamed"]["usage"]["input_tokens"] == 37


def test_a_chain_answers_a_batch(said: Said) -> None:
    france, germany = said["chained"]
    assert "Paris" in france and "Berlin" in germany


def test_a_forced_call_runs_the_tool_and_its_result_is_answered(said: Said) -> None:
    called = said["called"]
    assert called["whole"]["city"] in ("Rome", "Oslo")
    assert called["streamed"] and all(call["city"] in ("Rome", "Oslo") for call in called["streamed"])
    assert called["result"] == f"Sunny in {called['whole']['city']}"
    assert called["after"]


def test_both_methods_of_structured_output_give_the_model_class(said: Said) -> None:
    for made in said["structured"].values():
        assert made.startswith("Capital(country=")


def test_an_overflow_is_its_context_overflow_error(said: Said) -> None:
    assert said["errors"] == dict.fromkeys(("whole", "streamed"), [True, "context_length_exceeded"])
