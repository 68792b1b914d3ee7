"""The whole program as an operator starts it: `twophase serve`, its real engine, the embedded model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

READY = re.compile(r"ready: (\S+) at (http://\S+)")


@dataclass
class Served:
    """A running `twophase serve`."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    watcher: threading.Thread | None = None
    _ready: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Read what it says until it ends; its ready line tells the address."""
        assert self.process.stderr is not None
        with self.process.stderr as said:
            for line in said:
                self.lines.append(line)
                if match := READY.search(line):
                    self.url = match[2]
                    self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> None:
        """Returns when it serves; fails with its last words when it ends before."""
        assert self._ready.wait(240), "not ready in time:\n" + "".join(self.lines[-20:])
        assert self.url, "it ended:\n" + "".join(self.lines[-20:])

    @property
    def family(self) -> list[psutil.Process]:
        """Its own process and all below it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal as a terminal does, to the whole group; the exit code."""
        os.killpg(self.process.pid, number)
        return self.process.wait(60)


def start(*arguments: str, niceness: str = "0", **settings: str) -> Served:
    """Start `twophase serve` on a free port, in a process group of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TWOPHASE_")}
    settings.setdefault("TWOPHASE_ENGINE_ARGS", '{"kv_cache_memory_bytes": 536870912}')
    process = subprocess.Popen(
        ["nice", "-n", niceness, sys.executable, "-m", "service", "serve", "--port", "0", *arguments],
        env={**environment, **settings},
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    served = Served(process)
    served.watcher = threading.Thread(target=served.watch)
    served.watcher.start()
    return served


@contextmanager
def serving(*arguments: str, **settings: str) -> Iterator[Served]:
    """`twophase serve` for as long as the block lasts, from when it is ready."""
    served = start(*arguments, **settings)
    try:
        served.wait_until_ready()
        yield served
    finally:
        if served.process.poll() is None:
            served.stop(signal.SIGTERM)
        assert served.watcher is not None
        served.watcher.join(30)


@pytest.fixture(scope="session")
def served(embedded_model: Path, cache: Path) -> Iterator[Served]:
    """One real service for all tests here; however slow the machine, it refuses nobody for that."""
    with serving(TWOPHASE_CACHE=str(cache), TWOPHASE_SLO_TTFT_MS="60000") as served:
        yield served


@pytest.fixture(scope="session")
def web(served: Served) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client
