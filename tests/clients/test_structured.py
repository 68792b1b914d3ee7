"""Libraries that want answers as objects, on the real service: Pydantic AI and Instructor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

Said = dict[str, Any]


@pytest.fixture(scope="module")
def agents(listen: Callable[[str], Said]) -> Said:
    """What Pydantic AI says."""
    return listen("pydantic_ai")


@pytest.fixture(scope="module")
def instructor(listen: Callable[[str], Said]) -> Said:
    """What Instructor says."""
    return listen("instructor")


def test_an_agent_answers_with_usage_and_remembers(agents: Said) -> None:
    assert "Paris" in agents["whole"]["text"] and agents["whole"]["second"]
    prompt_tokens, output_tokens = agents["whole"]["usage"]
    assert prompt_tokens > 20 and 1 < output_tokens <= 48


def test_an_agent_streams_what_it_says_whole(agents: Said) -> None:
    assert "".join(agents["streamed"]["pieces"]) == agents["whole"]["text"]
    assert len(agents["streamed"]["pieces"]) > 4
    assert agents["streamed"]["usage"] == agents["whole"]["usage"]


def test_an_agent_s_output_is_an_object_by_tool_and_by_schema(agents: Said) -> None:
    assert set(agents["structured"]) == {"tool", "native"}
    for made in agents["structured"].values():
        assert made.startswith("Capital(country=")


def test_an_agent_s_overflow_is_its_own_exception(agents: Said) -> None:
    name, message = agents["errors"]
    assert name.endswith("ModelContextWindowExceededError")
    assert "This model's maximum context length is" in message


def test_instructor_makes_objects_by_tool_and_by_schema_whole_and_in_parts(instructor: Said) -> None:
    assert set(instructor) == {"TOOLS", "JSON_SCHEMA"}
    for made in instructor.values():
        assert made["whole"].startswith("Capital(country=")
        assert made["usage"]["total_tokens"] > made["usage"]["prompt_tokens"] > 30
        assert made["partial"][-1]["city"] in ("Paris", "Rome") and len(made["partial"]) > 1
