"""The load tests on a real service, as `make loadtest URL=…` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.plan import KEY_VARIABLE
from loadtests.sample import read_samples
from tests.real.conftest import Served
from tests.small.conftest import KEYS

pytestmark = pytest.mark.engine


def test_client_and_server_tell_the_same_story(small: Served, tmp_path: Path) -> None:
    what = ("--scenario", "streaming", "--seconds", "4", "--out", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-m", "loadtests", small.url, *what],
        env={**os.environ, KEY_VARIABLE: KEYS["a"]},
        capture_output=True,
        text=True,
        timeout=120,
    )
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
