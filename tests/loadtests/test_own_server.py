"""Without a URL: a server is started, put under load, told to go in the middle, and gone in the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.random_model import make
from loadtests.sample import read_samples
from loadtests.scenarios import AFTER_SIGNAL

pytestmark = pytest.mark.engine


def test_a_drain_ends_what_runs_and_refuses_what_comes(cache: Path, tmp_path: Path) -> None:
    model = make(tmp_path / "one-layer", cache, context_window=1024)
    # Answers of 600 tokens run long enough to be met by the signal.
    what = ("--scenario", "drain", "--rate", "6", "--seconds", "5", "--workload", "chat,tokens=600")
    ended = subprocess.run(
        [sys.executable, "-m", "loadtests", *what, "--out", str(tmp_path / "out")],
        env={
            **os.environ,
            "TWOPHASE_MODEL": str(model),
            "TWOPHASE_CACHE": str(cache),
            "TWOPHASE_ENGINE_ARGS": '{"kv_cache_memory_bytes": 134217728}',
            "TWOPHASE_DRAIN_S": "120",  # what runs ends by itself, however slow the machine
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    samples = read_samples(tmp_path / "out")
    outcomes = {sample.outcome for sample in samples}
    assert outcomes <= {"ok", "refused", "no_connection"}, ended.stderr
    assert "ok" in outcomes and outcomes & {"refused", "no_connection"}
    # The signal comes when its step begins: it waits for no answer.
    late = [sample for sample in samples if sample.step == 1 and sample.into_s > 1]
    assert late and {sample.status for sample in late} <= {503, 0}, ended.stderr
    assert AFTER_SIGNAL in ended.stderr
    assert "0 answers were cut" in ended.stderr
    server = re.search(r"ready at http://127\.0\.0\.1:(\d+)", ended.stderr)
    assert server is not None
    left = [one for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == int(server[1])]
    assert not [one for one in left if one.status == psutil.CONN_LISTEN]
