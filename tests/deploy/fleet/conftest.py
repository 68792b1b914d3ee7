"""Several engines at once behind Ray Serve, and behind vllm-router: `make fleet`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import fleet
from bench.child import BenchError
from bench.random_model import make
from tests.system import do_without

WINDOW = 4096


@pytest.fixture(scope="session")
def model(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one-layer model."""
    return make(tmp_path_factory.mktemp("fleet") / "one-layer", cache, context_window=WINDOW)


@pytest.fixture(scope="session")
def ray() -> None:
    """The environment with Ray, made when it is not there."""
    try:
        fleet.install()
    except BenchError as exc:
        do_without(f"the environment with Ray cannot be made: {exc}")


@pytest.fixture(scope="module")
def growing(model: Path, ray: None) -> Iterator[fleet.Fleet]:
    """One replica, and a second one as soon as there is more to do than for one."""
    scaling = {"target_ongoing_requests": 3, "upscale_delay_s": 2, "downscale_delay_s": 60}
    with fleet.running(model, {"autoscaling_config": scaling}, TWOPHASE_DRAIN_S="30") as running:
        yield running
