"""The router that affinity is compared with, as Serve loads it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest

from bench.affinity import FLEETS
from tests.deploy.dockerfile import ROOT

pytestmark = pytest.mark.fleet

DRAWS = 3000
FIVE_DEVIATIONS = 5 * (DRAWS * 1 / 6 * 5 / 6) ** 0.5  # of how often chance gives one of six orders
# Loads the class from a deployment's options as Serve does, and prints whether it is whole and what it chose.
PROGRAM = """
import asyncio, inspect, json, sys
from ray.serve.config import RequestRouterConfig
options, draws = json.loads(sys.argv[1]), int(sys.argv[2])
router = RequestRouterConfig(**options).get_request_router_class()
chosen = [asyncio.run(router.choose_replicas(None, ["a", "b", "c"])) for _ in range(draws)]
print(json.dumps([inspect.isabstract(router), chosen]))
"""


def orders() -> list[str]:
    """In which order a router of three replicas offered them to each of many requests."""
    options = json.dumps(FLEETS["two, random"]["request_router_config"])
    command = [str(ROOT / ".venv-ray" / "bin" / "python"), "-c", PROGRAM, options, str(DRAWS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    is_abstract, chosen = json.loads(ended.stdout.splitlines()[-1])
    assert not is_abstract
    return ["".join(replica for (replica,) in ranks) for ranks in chosen]


def test_random_routing_spreads_evenly_and_differs_from_run_to_run(ray: None) -> None:
    one, other = orders(), orders()
    assert one != other, "nothing seeds it"
    times = Counter(one)
    assert set(times) == {"abc", "acb", "bac", "bca", "cab", "cba"}, "who refuses is followed by another"
    assert all(abs(count - DRAWS / 6) < FIVE_DEVIATIONS for count in times.values()), times
