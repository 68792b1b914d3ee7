"""Where a run took place: what a reader needs to judge its figures."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import psutil


def describe() -> dict[str, str]:
    """The machine that makes the load."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{_cpu_model()}, {psutil.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load generator": f"Locust {importlib.metadata.version('locust')}",
    }


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
