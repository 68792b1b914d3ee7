"""A real Prometheus over a real service, with our rules and in a hurry: it scrapes every second."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

from tests.system import program
from tests.telemetry.collector import closed_port

GRAFANA = Path(__file__).parent.parent.parent / "grafana"
EVERY = "1s"

Sample = tuple[float, float]  # when, and how much


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

    labels: dict[str, str]
    samples: list[Sample]


@dataclass
class Prometheus:
    """A running one."""

    web: httpx.Client

    def now(self, expr: str) -> list[Series]:
        """What an expression is at this moment."""
        data = self._get("query", query=expr)
        if data["resultType"] == "scalar":
            return [_series({}, [data["result"]])]
        return [_series(found["metric"], [found["value"]]) for found in data["result"]]

    def number(self, expr: str) -> float:
        """The one number that an expression is at this moment."""
        (series,) = self.now(expr)
        return series.samples[-1][1]

    def over(self, expr: str, start_s: float, end_s: float, step_s: float = 1) -> list[Series]:
        """What an expression was over time."""
        data = self._get("query_range", query=expr, start=start_s, end=end_s, step=step_s)
        return [_series(found["metric"], found["values"]) for found in data["result"]]

    def exemplars(self, expr: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """The exemplars of all series that an expression reads."""
        groups = self._get("query_exemplars", query=expr, start=start_s, end=end_s)
        return [exemplar for group in groups for exemplar in group["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule as Prometheus sees it."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def scraped(self) -> bool:
        """Whether its target has answered."""
        return any(series.samples[-1][1] == 1 for series in self.now("up"))

    def _get(self, what: str, **parameters: str | float) -> Any:
        answer = self.web.get(f"/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]


@contextmanager
def prometheus_over(url: str, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes the service at `url` and keeps its data in `folder`."""
    with prometheus_with(_hurried(url, folder), folder) as running:
        yield running


@contextmanager
def prometheus_with(configuration: dict[str, Any], folder: Path) -> Iterator[Prometheus]:
    """One that has a target, once that has answered."""
    port = closed_port()
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration))
    process = subprocess.Popen(
        [
            program("prometheus", package="prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
            running = Prometheus(web)
            _wait_until_scraped(running, process)
            yield running
    finally:
        process.terminate()
        process.wait(20)


def _hurried(url: str, folder: Path) -> dict[str, Any]:
    """The committed configuration, aimed at `url`, with every interval cut short."""
    config: dict[str, Any] = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [url.removeprefix("http://")]
    config["rule_files"] = [str(_hurried_rules(GRAFANA / name, folder)) for name in config["rule_files"]]
    return config


def _hurried_rules(source: Path, folder: Path) -> Path:
    """What looks at the last minute looks at ten seconds, so that it can follow a load of a minute."""
    rules = yaml.safe_load(source.read_text().replace("[1m]", "[10s]"))
    for group in rules["groups"]:
        group.pop("interval", None)
    made = folder / source.name
    made.write_text(yaml.safe_dump(rules))
    return made


def _wait_until_scraped(running: Prometheus, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        assert process.poll() is None, "Prometheus ended; what it said stands above"
        try:
            if running.scraped():
                return
        except (httpx.TransportError, ValueError, AssertionError):  # it is not listening or not ready yet
            pass
        time.sleep(0.2)
    raise AssertionError("Prometheus has not scraped the service in time")


def _series(labels: dict[str, str], samples: list[list[Any]]) -> Series:
    return Series(labels, [(float(when), float(value)) for when, value in samples])
