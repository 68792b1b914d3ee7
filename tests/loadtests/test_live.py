"""Locust's own page, with what is added to it, as somebody in front of a browser uses it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.child import free_port
from tests.loadtests.scripted_server import Reply, serving
from tests.serving import until


async def _answers(reply: Reply) -> None:
    if not reply.seen.body.get("stream"):
        await reply.head(kind=b"application/json")
        await reply.raw(b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}')
        return
    await reply.head()
    await reply.token()
    await reply.token()
    await reply.end()


@pytest.fixture(scope="module")
def steered(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[httpx.Client, Path, subprocess.Popen[str]]]:
    """A load test that waits to be started from its page."""
    port, folder = free_port(), tmp_path_factory.mktemp("web")
    with serving(_answers) as server:
        what = (
            "--scenario",
            "closed",
            "--users",
            "2",
            "--seconds",
            "2",
            "--model",
            "m",
            "--out",
            str(folder),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "loadtests", server.url, "--web", "--web-port", str(port), *what],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as page:
                until(lambda: _up(page), within_s=60)
                yield page, folder, process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def _up(page: httpx.Client) -> bool:
    try:
        return page.get("/").status_code == 200
    except httpx.TransportError:
        return False


def rows_of(page: httpx.Client) -> list[dict[str, Any]]:
    """The table of the added tab."""
    time.sleep(0.5)
    (table,) = page.get("/stats/requests").json()["extended_stats"]
    return list(table["data"])


def test_a_run_is_started_from_the_page_and_seen_on_it(
    steered: tuple[httpx.Client, Path, subprocess.Popen[str]],
) -> None:
    page, folder, process = steered
    assert '"title": "Tokens"' in page.get("/").text
    assert page.post("/swarm", data={"user_count": 1, "spawn_rate": 1}).json()["success"]
    until(lambda: rows_of(page), within_s=90)
    (row,) = rows_of(page)
    assert row["step"] == "2 users"
    assert row["ttft_p50_ms"] > 0
    stats = page.get("/stats/requests").json()
    assert {line["method"] for line in stats["stats"] if line["method"]} == {"TTFT"}
    assert "response_time_percentile_0.99" in stats["current_response_time_percentiles"]
    assert "Load test of m" in page.get("/report").text
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert (folder / "steps.csv").exists()
