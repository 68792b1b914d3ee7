"""What becomes of callers when processes die, stop or are asked to go, under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import httpx
import psutil
import pytest

from tests.chaos.conftest import engine_core
from tests.chaos.soak import soak
from tests.chaos.storm import Reply, Storm
from tests.real.conftest import Served
from tests.serving import until

pytestmark = [pytest.mark.engine, pytest.mark.chaos]

Start = Callable[[], Served]
MIX = ["reader"] * 6 + ["whole", "several", "leaver", "too long", "wrong"]


def under_way(storm: Storm) -> None:
    """Wait until the load is on."""
    until(lambda: storm.endings()["whole"] >= 8, within_s=60)


def ready(served: Served) -> bool:
    try:
        return httpx.get(served.url + "/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def only_told(replies: list[Reply], *codes: str) -> None:
    """No caller was left without a word: whole, refused, left by itself, or ended with one of `codes`."""
    for reply in replies:
        assert reply.ending != "cut off", reply
        if reply.ending == "error event" or reply.status >= 500:
            assert reply.code in codes, reply
        if reply.status in (429, 503):
            assert reply.retry_after, reply


def test_a_killed_engine_ends_streams_with_an_error_and_the_service_with_a_failure(service: Start) -> None:
    served = service()
    family = served.family
    with Storm(served.url, MIX, tokens=300) as storm:
        under_way(storm)
        engine_core(served).kill()
        killed_s = time.monotonic()
        assert served.process.wait(20) != 0, "a supervisor must see that it has failed"
        gone_s = time.monotonic()
    struck = [reply for reply in storm.across(killed_s) if reply.ending == "error event"]
    assert struck and all(reply.code == "engine_unavailable" for reply in struck)
    only_told(storm.across(killed_s), "engine_unavailable", "draining")  # who waited hears of the end
    later = [reply for reply in storm.since(killed_s) if reply.ended_s < gone_s and reply.status]
    assert all(reply.status in (400, 503) for reply in later)
    assert not psutil.wait_procs(family, timeout=10)[1], "no process is left"


def test_a_stopped_engine_is_seen_ends_its_requests_and_serves_again_when_it_moves(service: Start) -> None:
    """And is then as it was. Asked to go, under load, the same service finishes what it has begun."""
    served = service()
    with Storm(served.url, MIX, tokens=300) as storm:
        under_way(storm)
        core = engine_core(served)
        core.suspend()
        stopped_s = time.monotonic()
        until(lambda: not ready(served), within_s=30)
        until(lambda: any(reply.ending == "error event" for reply in storm.across(stopped_s)), within_s=30)
        core.resume()
        until(lambda: ready(served), within_s=30)
        moving_s = time.monotonic()
        until(lambda: sum(reply.ending == "whole" for reply in storm.since(moving_s)) >= 8, within_s=60)
    only_told(storm.replies, "engine_unavailable")
    faults = [fault for fault in soak(served, minutes=0.25).faults() if not fault.startswith("memory")]
    assert not faults, "\n".join(faults)  # the time is too short to judge the memory
    assert engine_core(served) == core
    drained_service_finishes_what_it_has_begun(served)


def drained_service_finishes_what_it_has_begun(served: Served) -> None:
    family = served.family
    with Storm(served.url, ["reader"] * 6, tokens=300) as storm:
        under_way(storm)
        served.process.send_signal(signal.SIGTERM)
        asked_s = time.monotonic()
        until(lambda: not ready(served), within_s=5)
        assert served.process.wait(60) == 0
    assert {reply.ending for reply in storm.across(asked_s)} <= {"whole", "refused"}
    assert any(reply.ending == "whole" for reply in storm.across(asked_s))
    refused = [reply for reply in storm.since(asked_s) if reply.status]
    assert refused and all(reply.code == "draining" and reply.retry_after for reply in refused)
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_no_engine_survives_a_service_that_is_killed(service: Start) -> None:
    served = service()
    family = served.family
    with Storm(served.url, ["reader"] * 4, tokens=300) as storm:
        under_way(storm)
        served.process.kill()
        killed_s = time.monotonic()
        assert not psutil.wait_procs(family, timeout=15)[1]
    assert all(reply.ending in ("cut off", "unreachable") for reply in storm.across(killed_s))
