"""The load tests on a real service, as `make loadtest URL=…` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.plan import KEY_VARIABLE
from loadtests.sample import FAILURES, read_samples
from tests.real.conftest import Served
from tests.small.conftest import KEYS

pytestmark = pytest.mark.engine


def loadtest(small: Served, folder: Path, *what: str) -> subprocess.CompletedProcess[str]:
    """Run one against the small service."""
    return subprocess.run(
        [sys.executable, "-m", "loadtests", small.url, *what, "--out", str(folder)],
        env={**os.environ, KEY_VARIABLE: KEYS["a"]},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_client_and_server_tell_the_same_story(small: Served, tmp_path: Path) -> None:
    ended = loadtest(small, tmp_path, "--scenario", "streaming", "--seconds", "4")
    assert ended.returncode == 0, ended.stderr
    samples = read_samples(tmp_path)
    assert {sample.streamed for sample in samples} == {True, False}
    for sample in samples:
        assert (sample.outcome, sample.tokens, sample.counted) == ("ok", 32, True)
        assert sample.phases is not None and sample.first_ms is not None
        # The server's clock for this starts later and stops earlier than the client's.
        if sample.streamed:
            assert sample.phases["ttft_ms"] <= sample.first_ms - sample.sent_ms
        assert sample.phases["decode_steps"] == 31
    page = (tmp_path / "report.html").read_text()
    assert {f'id="{name}"' in page for name in ("streaming", "phases", "both-sides")} == {True}
    assert "twophase" in (tmp_path / "metrics.jsonl").read_text()


def test_the_engine_lets_go_of_clients_that_left(small: Served, tmp_path: Path) -> None:
    load = ("--rate", "2", "--seconds", "4", "--pause", "30", "--workload", "chat,tokens=400")
    ended = loadtest(small, tmp_path, "--scenario", "disconnects", *load)
    assert "afterwards the engine had let go of them" in ended.stderr
    outcomes = {sample.outcome for sample in read_samples(tmp_path)}
    assert "left" in outcomes
    assert not outcomes & FAILURES
