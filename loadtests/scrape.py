"""The server's own metrics while it is under load: read once a second, where it shows any."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
from prometheus_client.parser import text_string_to_metric_families

EVERY_S = 1.0
TIMEOUT_S = 5.0
PREFIXES = ("twophase_", "vllm:")
LEFT_OUT = ("_bucket", "_created", "_info")

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All of our values and vLLM's at one instant, by name and labels."""

    unix_s: float
    values: Values


class Scraper:
    """Reads `/metrics` in a thread, and writes each reading to a file, for as long as it is open."""

    def __init__(self, url: str, key: str, path: Path) -> None:
        self._request = urllib.request.Request(f"{url}/metrics")
        if key:
            self._request.add_header("Authorization", f"Bearer {key}")
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(TIMEOUT_S)

    def _work(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            while not self._over.wait(EVERY_S):
                try:
                    with urllib.request.urlopen(self._request, timeout=TIMEOUT_S) as response:
                        values = parse(response.read().decode(errors="replace"))
                except (OSError, ValueError):  # it has none, or is busy, or is going down
                    continue
                line = {"unix_s": time.time(), "values": values}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def parse(page: str) -> Values:
    """Every sample of the families we know, but for buckets.

    Raises:
        ValueError: the page is no metrics page.
    """
    return {
        _key(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        if family.name.startswith(PREFIXES)
        for sample in family.samples
        if not sample.name.endswith(LEFT_OUT)
    }


def _key(name: str, labels: dict[str, str]) -> str:
    shown = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in ("model_name", "engine"))
    return f"{name}{{{shown}}}" if shown else name


def read_scrapes(path: Path) -> list[Scrape]:
    """What a scraper wrote; nothing where there was nothing to read."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [Scrape(**orjson.loads(line)) for line in lines if line.endswith(b"}")]


class Window:
    """The readings between two instants."""

    def __init__(self, scrapes: Iterable[Scrape], begin_unix_s: float, end_unix_s: float) -> None:
        self._scrapes: Sequence[Scrape] = [s for s in scrapes if begin_unix_s <= s.unix_s <= end_unix_s]

    def __bool__(self) -> bool:
        return len(self._scrapes) > 1

    def mean(self, key: str) -> float | None:
        """Of a gauge."""
        found = list(self._of(key))
        return sum(found) / len(found) if found else None

    def highest(self, key: str) -> float | None:
        """Of a gauge."""
        return max(self._of(key), default=None)

    def lowest(self, key: str) -> float | None:
        """Of a gauge."""
        return min(self._of(key), default=None)

    def rise(self, key: str) -> float:
        """Of a counter, from the first reading to the last."""
        found = list(self._of(key))
        return found[-1] - found[0] if found else 0.0

    def rate(self, key: str) -> float:
        """Of a counter, per second."""
        seconds = self._scrapes[-1].unix_s - self._scrapes[0].unix_s if self else 0.0
        return self.rise(key) / seconds if seconds else 0.0

    def mean_of(self, histogram: str, labels: str = "") -> float | None:
        """The mean of what a histogram saw in the window."""
        count = self.rise(f"{histogram}_count{labels}")
        return self.rise(f"{histogram}_sum{labels}") / count if count else None

    def _of(self, key: str) -> Iterator[float]:
        return (scrape.values[key] for scrape in self._scrapes if key in scrape.values)
