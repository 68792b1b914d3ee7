"""Tools that measure servers of language models, on the real service, as README has people run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.contestants import names_of_vllm
from tests.clients.conftest import KEY, PATIENCE_S, surroundings
from tests.clients.environments import environment
from tests.clients.readme import lines
from tests.real.conftest import Served

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]

OURS = Path(sys.executable).parent


def shell(command: str, folder: Path, *programs: Path, **variables: str) -> None:
    """Run a command as a user does who is in `folder`, with these folders of programs."""
    path = os.pathsep.join([*map(str, programs), str(OURS), os.environ["PATH"]])
    environ = {**surroundings(), "PATH": path, **variables}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_vllm_bench_serve_gets_all_its_answers_at_the_length_it_asks_for(
    service: Served, embedded_model: Path, cache: Path, tmp_path: Path
) -> None:
    command = lines("sh", "vllm bench serve", service.url, KEY)
    command += " --save-result --save-detailed --result-filename result.json"
    named = names_of_vllm(tmp_path)
    shell(command, tmp_path, TWOPHASE_CACHE=str(cache), OPENAI_API_KEY=KEY, **named)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (6, 0)
    assert result["output_lens"] == [8] * 6
    assert min(result["ttfts"]) > 0 and all(len(gaps) > 0 for gaps in result["itls"])


def test_guidellm_finds_the_model_and_gets_all_its_answers_at_the_length_it_asks_for(
    service: Served, embedded_model: Path, cache: Path, tmp_path: Path
) -> None:
    command = lines("sh", "guidellm run", service.url, KEY)
    shell(command, tmp_path, environment("guidellm"), TWOPHASE_CACHE=str(cache), HF_HUB_OFFLINE="1")
    report: dict[str, Any] = json.loads((tmp_path / "benchmarks.json").read_text())
    (benchmark,) = report["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), requests["errored"]) == (4, [])
    for request in requests["successful"]:
        assert request["output_tokens"] == 8 and request["prompt_tokens"] > 32
        assert request["time_to_first_token_ms"] > 0
