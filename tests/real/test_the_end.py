"""The end of the whole program. Last in its folder: it ends the service that the other tests share."""

from __future__ import annotations

import os
import signal

import httpx
import psutil
import pytest

from tests.real.conftest import Served

pytestmark = pytest.mark.engine


def test_ctrl_c_finishes_what_runs_and_leaves_no_process(served: Served, web: httpx.Client) -> None:
    family = served.family
    assert len(family) >= 3, "the service, its engine and its worker"
    request = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 60,
        "ignore_eos": True,
        "stream": True,
    }
    with web.stream("POST", "/v1/chat/completions", json=request) as response:
        lines = response.iter_lines()
        next(lines)
        os.killpg(served.process.pid, signal.SIGINT)  # as a terminal does
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""], "the running answer was cut off"
    assert served.process.wait(60) == 0
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
