"""`python -m tests.chaos.soak`: mixed load for minutes on end, and whether anything grows or is left over.

Good and bad requests, callers who leave, more than there is room for. Afterwards the service must be as it
was: no more memory, nothing in flight, no block of the KV cache in use, the same engine, no stray exception.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bench.random_model import make
from bench.stats import spread
from tests.chaos.conftest import WINDOW, begin, engine_core
from tests.chaos.storm import Storm
from tests.real.conftest import Served

MIX = ["reader"] * 8 + ["whole"] * 2 + ["several"] * 2 + ["leaver"] * 3 + ["too long", "wrong"]
SAMPLE_S = 5.0
WARM_UP = 0.25  # of the whole time: pools and caches fill first
MOST_GROWTH = 0.02
SILENT_S = 3.0  # after the last caller, for what is still being put away
STRAY = re.compile(r"Traceback|could not be ended|never retrieved|was never awaited|Task was destroyed")
LINES_OF_A_FAULT = 25
LEFT_OVER = (
    "twophase_inflight",
    "twophase_kv_reserved_tokens",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)


@dataclass(slots=True)
class Findings:
    """What a soak has seen."""

    minutes: float
    endings: Counter[str]
    alive_p99_ms: float
    memory_mb: list[float] = field(default_factory=list)
    left_over: dict[str, float] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    same_engine: bool = True

    @property
    def growth(self) -> float:
        """Of the memory of the service's own process, from the end of the warm-up to the end: medians."""
        steady = self.memory_mb[int(len(self.memory_mb) * WARM_UP) :]
        third = max(1, len(steady) // 3)
        return spread(steady[-third:]).median / spread(steady[:third]).median - 1

    def faults(self) -> list[str]:
        """Why it is not well, in sentences."""
        found = [f"{name} is {value:g} with nobody there" for name, value in self.left_over.items() if value]
        found += [f"the log has: {lines}" for lines in self.stray[:3]]
        if self.growth > MOST_GROWTH:
            found.append(f"memory has grown by {self.growth:.1%}")
        if not self.same_engine:
            found.append("the engine is not the one it was")
        if cut := self.endings["cut off"] + self.endings["error event"] + self.endings["unreachable"]:
            found.append(f"{cut} answers were lost")
        return found

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {ending}" for ending, count in self.endings.most_common())
        return (
            f"{self.minutes:g} minutes: {counts}; /livez p99 {self.alive_p99_ms:.0f} ms; "
            f"memory {self.memory_mb[0]:.0f} MB at first, {self.memory_mb[-1]:.0f} MB at last, "
            f"{self.growth:+.2%} after the warm-up"
        )


def soak(served: Served, minutes: float) -> Findings:
    """Load it for so long, then look at what is left."""
    core = engine_core(served)
    process = psutil.Process(served.process.pid)
    memory_mb = []
    until_s = time.monotonic() + minutes * 60
    with Storm(served.url, MIX, tokens=48) as storm:
        while time.monotonic() < until_s:
            time.sleep(min(SAMPLE_S, minutes * 60 / 20))
            memory_mb.append(process.memory_info().rss / 1e6)
    time.sleep(SILENT_S)
    found = Findings(minutes, storm.endings(), storm.alive_p99_ms(), memory_mb)
    found.left_over = _left_over(httpx.get(served.url + "/metrics").text)
    found.stray = _stray(served.lines)
    found.same_engine = core.is_running() and engine_core(served) == core
    return found


def _stray(lines: Sequence[str]) -> list[str]:
    """Signs of what nobody has caught, with the lines after them."""
    starts = [number for number, line in enumerate(lines) if STRAY.search(line)]
    return ["".join(lines[number : number + LINES_OF_A_FAULT]) for number in starts]


def _left_over(page: str) -> dict[str, float]:
    """Series that are to be zero when nobody is there."""
    lines = [line for line in page.splitlines() if line.startswith(LEFT_OVER)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="(%(default)g)")
    options = parser.parse_args(argv)
    cache = Path(os.environ.get("TWOPHASE_CACHE", "~/.cache/twophase")).expanduser()
    with tempfile.TemporaryDirectory(prefix="twophase-soak-") as name:
        served = begin(make(Path(name) / "one-layer", cache, context_window=WINDOW))
        try:
            served.wait_until_ready()
            print(f"soaking {served.url} for {options.minutes:g} minutes", file=sys.stderr, flush=True)
            found = soak(served, options.minutes)
        finally:
            served.stop(signal.SIGTERM)
    print(found)
    for fault in found.faults():
        print(f"soak: {fault}", file=sys.stderr)
    return 1 if found.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
