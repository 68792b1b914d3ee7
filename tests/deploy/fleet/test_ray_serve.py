"""Real engines behind Ray Serve: streams, leaving callers, growing, shrinking, and the loss of a replica.

One fleet for all, in the order of this page: each test leaves it well.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from bench.fleet import Fleet
from tests.chaos.storm import Reply, Storm
from tests.deploy.dockerfile import ROOT
from tests.deploy.fleet.streams import HELLO, first_piece_came_after
from tests.grafana.prometheus import prometheus_with
from tests.serving import until

pytestmark = [pytest.mark.engine, pytest.mark.fleet, pytest.mark.timeout(1200)]

RUNNING = "vllm:num_requests_running"
REQUESTS = "twophase_requests_total"
MANY = ["reader"] * 10
GROWS_S = 240  # the second engine starts beside the first, which is at work, on as many cores
SHRINKS_S = 180


def served(fleet: Fleet) -> dict[str, float]:
    """How many requests each replica has ended."""
    return {replica: sums[REQUESTS] for replica, sums in fleet.sums(REQUESTS).items()}


def whole(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if reply.ending == "whole"]


def not_whole(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if reply.ending != "whole"]


@pytest.mark.parametrize(
    "serving",
    [
        "from deploy.ray.fleet import Replica; Replica(0)",
        "from deploy.ray.targets import Targets; Targets().__serve_build_asgi_app__()",
    ],
)
def test_what_listens_to_everybody_wants_keys(ray: None, serving: str) -> None:
    environ = {**os.environ, "TWOPHASE_HOST": "0.0.0.0"}
    command = [str(ROOT / ".venv-ray" / "bin" / "python"), "-c", serving]
    ended = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode and "TWOPHASE_ALLOW_ANONYMOUS=1" in ended.stderr


def test_an_answer_streams_through_serve_as_it_is_made(growing: Fleet) -> None:
    assert first_piece_came_after(growing.url) < 0.5


def test_a_caller_who_leaves_ends_the_work_for_it(growing: Fleet) -> None:
    body = {**HELLO, "max_tokens": 4000}
    url = f"{growing.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        lines = response.iter_lines()  # which ends the request when it is let go
        for _ in range(20):
            next(lines)
        assert sum(sums[RUNNING] for sums in growing.sums(RUNNING).values()) == 1
    until(lambda: sum(sums[RUNNING] for sums in growing.sums(RUNNING).values()) == 0, within_s=5)


def test_it_grows_under_load_and_metrics_are_each_replica_s_own(growing: Fleet) -> None:
    with Storm(growing.url, MANY, tokens=400) as storm:
        growing.wait_for(2, GROWS_S)
        until(lambda: all(count > 3 for count in served(growing).values()), within_s=60)
    assert not not_whole(storm.replies)
    one, other = served(growing).values()
    assert one + other == len(storm.replies) + 2, "each answer is counted by one of them"


def test_prometheus_finds_both_and_tells_them_apart(growing: Fleet, tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "deploy" / "ray" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["http_sd_configs"] = [{"url": f"{growing.url}/targets/replicas", "refresh_interval": "1s"}]
    config["global"]["scrape_interval"] = "1s"
    del config["rule_files"]
    # Prometheus first: installing it beside the load could take longer than it may.
    with prometheus_with(config, tmp_path) as prometheus, Storm(growing.url, MANY, tokens=400):
        until(lambda: len(prometheus.now("up == 1")) == 2, within_s=GROWS_S)
        growing.wait_for(2)
        until(lambda: len(prometheus.now(f"sum by (replica) ({REQUESTS}) > 3")) == 2, within_s=60)
        assert {series.labels["replica"] for series in prometheus.now("up == 1")} == set(growing.replicas())


def test_a_lost_replica_s_callers_are_told_and_others_are_served(growing: Fleet) -> None:
    # Short answers: one engine writes them all while the next one starts on the same cores.
    with Storm(growing.url, MANY, tokens=60) as storm:
        growing.wait_for(2, GROWS_S)
        name, process = next(iter(growing.processes().items()))
        # Long ones beside them: to ask both replicas what they do may take seconds, in which short ones end.
        with Storm(growing.url, MANY, tokens=3000) as readers:
            until(lambda: all(sums[RUNNING] > 2 for sums in growing.sums(RUNNING).values()), within_s=60)
            kills_s = time.monotonic()
            process.kill()
            killed_s = time.monotonic()
        until(lambda: len(whole(storm.since(killed_s + 2))) >= 20, within_s=60)
        until(lambda: name not in growing.replicas(), within_s=60)
        growing.wait_for(2, GROWS_S)
    struck = not_whole(storm.across(kills_s) + readers.across(kills_s))
    assert struck and {reply.ending for reply in struck} <= {"error event", "refused"}
    assert any(reply.ending == "error event" for reply in struck)
    assert all(reply.code == "engine_unavailable" for reply in struck)
    assert sorted(reply.ended_s for reply in whole(storm.since(killed_s + 2)))[19] - killed_s < 30
    later = not_whole(storm.since(killed_s + 1))
    assert not later, later


def test_it_shrinks_without_cutting_a_stream(growing: Fleet) -> None:
    with Storm(growing.url, ["reader"], tokens=3000) as storm:
        growing.wait_for(1, SHRINKS_S)
        time.sleep(5)
    assert storm.replies and not not_whole(storm.replies)
