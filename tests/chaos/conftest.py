"""The whole program on the one-layer model, started anew for whoever means to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bench.random_model import make
from tests.real.conftest import Served, start

WINDOW = 2048
HANG_S = 2
DRAIN_S = 20


@pytest.fixture(scope="session")
def model(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one-layer model."""
    return make(tmp_path_factory.mktemp("chaos") / "one-layer", cache, context_window=WINDOW)


def begin(model: Path) -> Served:
    """A service that is being started."""
    return start(
        "--model",
        str(model),
        TWOPHASE_ENGINE_ARGS='{"kv_cache_memory_bytes": 67108864, "max_num_seqs": 8}',
        TWOPHASE_HANG_S=str(HANG_S),
        TWOPHASE_DRAIN_S=str(DRAIN_S),
        TWOPHASE_MAX_WAITING="64",
        TWOPHASE_SLO_TTFT_MS="600000",
    )


@pytest.fixture
def service(model: Path) -> Iterator[Callable[[], Served]]:
    """Starts services; whatever is left of them at the end is killed."""
    families: list[list[psutil.Process]] = []
    with ExitStack() as leftovers:
        leftovers.callback(_kill, families)

        def started() -> Served:
            served = begin(model)
            leftovers.callback(_clear_away, served)
            served.wait_until_ready()
            families.append(served.family)
            return served

        yield started


def engine_core(served: Served) -> psutil.Process:
    """The process that schedules and runs the model."""
    [core] = [child for child in served.family if "EngineCore" in " ".join(child.cmdline())]
    return core


def _kill(families: list[list[psutil.Process]]) -> None:
    for process in [process for family in families for process in family]:
        if process.is_running():
            process.kill()


def _clear_away(served: Served) -> None:
    if served.process.poll() is None:
        served.process.kill()
    served.process.wait(30)
    assert served.watcher is not None
    served.watcher.join(30)
