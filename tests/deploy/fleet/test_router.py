"""vllm-router, as `deploy/router/run.sh` starts it, before two services with real engines."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from bench.child import free_port
from tests.chaos.storm import Storm, chat_body
from tests.clients.environments import environment
from tests.deploy.dockerfile import ROOT
from tests.deploy.fleet.streams import first_piece_came_after
from tests.real.conftest import Served, start
from tests.serving import until

pytestmark = [pytest.mark.engine, pytest.mark.fleet, pytest.mark.timeout(900)]

SCRIPT = ROOT / "deploy" / "router" / "run.sh"
SETTINGS = {
    "TWOPHASE_ENGINE_ARGS": '{"kv_cache_memory_bytes": 67108864, "max_num_seqs": 16}',
    "TWOPHASE_SLO_TTFT_MS": "600000",
    "TWOPHASE_DRAIN_S": "30",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or both would take the same core
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Routed:
    """A router, and the services behind it."""

    url: str
    services: list[Served]

    def answers(self) -> list[int]:
        """How many requests each service has ended."""
        return [_answers(service.url) for service in self.services]


@pytest.fixture(scope="module")
def routed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with ExitStack() as leftovers:
        services = []
        for _ in range(2):
            services.append(start("--model", str(model), **SETTINGS))
            leftovers.callback(_end, services[-1])
        for service in services:
            service.wait_until_ready()
        urls = [service.url for service in services]
        url = leftovers.enter_context(router(urls, tmp_path_factory.mktemp("router")))
        yield Routed(url, services)


@contextmanager
def router(services: list[str], folder: Path) -> Iterator[str]:
    """The router for as long as the block lasts, once it knows its services to be well."""
    port, metrics = free_port(), free_port()
    command = [str(SCRIPT), *services, "--port", str(port), "--prometheus-port", str(metrics)]
    environ = {**os.environ, "PATH": f"{environment('vllm_router')}:{os.environ['PATH']}"}
    url = f"http://127.0.0.1:{port}"
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: _healthy(url), within_s=60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def _end(service: Served) -> None:
    if service.process.poll() is None:
        service.stop(signal.SIGTERM)
    assert service.watcher is not None
    service.watcher.join(30)


def _answers(url: str) -> int:
    page = httpx.get(f"{url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith('twophase_requests_total{outcome="ok"}')]
    return int(float(lines[0].split()[-1]))


def test_sessions_stick_and_are_spread(routed: Routed) -> None:
    homes = []
    for session in range(6):
        before = routed.answers()
        for turn in range(3):
            body = chat_body(4, random.Random(100 * session + turn))
            headers = {"x-session-id": f"session {session}"}
            httpx.post(f"{routed.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
        until(lambda: sum(routed.answers()) == sum(before) + 3)  # noqa: B023  # counted when they are closed
        came = [now - then for now, then in zip(routed.answers(), before, strict=True)]
        assert sorted(came) == [0, 3], f"session {session} went to both"
        homes.append(came.index(3))
    assert set(homes) == {0, 1}, "all sessions went to the same service"


def test_an_answer_streams_through_the_router_as_it_is_made(routed: Routed) -> None:
    assert first_piece_came_after(routed.url) < 0.5


def test_a_draining_service_is_left_without_a_lost_request(routed: Routed) -> None:
    leaving, staying = routed.services
    with Storm(routed.url, ["reader"] * 8 + ["whole"] * 4, tokens=300) as storm:
        until(lambda: storm.endings()["whole"] >= 30 and min(routed.answers()) > 0, within_s=60)
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(60) == 0
        gone = _answers(staying.url)
        until(lambda: _answers(staying.url) > gone + 30, within_s=60)
    lost = [reply for reply in storm.replies if reply.ending != "whole"]
    assert not lost, lost
