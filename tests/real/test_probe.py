"""The probe at the real service with the real embedded model: both verdicts, each where it belongs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Served
from tests.test_command_line import twophase

pytestmark = [pytest.mark.engine, pytest.mark.embedded]


def probe(served: Served, *arguments: str) -> dict[str, Any]:
    """One measurement by the command."""
    done = twophase("probe", served.url, "--json", "--requests", "2", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_long_prompt_with_a_short_answer_is_bound_by_prefill(served: Served, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("The boat brought coal and rope, and the wind was fair. " * 150)
    found = probe(served, "--file", str(prompt), "--tokens", "3")
    assert found["verdict"] == "prefill" and found["has_phases"] and not found["unknown"], found
    assert found["cached_tokens"] < found["prompt_tokens"] / 2
    assert found["shares"]["prefill"] > 0.5


def test_a_short_prompt_with_a_long_answer_is_bound_by_decode(served: Served) -> None:
    found = probe(served, "--prompt", "Write a long story about the sea.", "--tokens", "64")
    assert found["verdict"] == "decode" and found["shares"]["decode"] > 0.5, found
