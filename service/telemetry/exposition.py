"""The page `/metrics`, as plain text or OpenMetrics: the same names in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text"
PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


class Page(Collector):
    """Several registries read as one."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            yield from registry.collect()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, by an Accept header.

        Both writers are told to leave names alone: by default prometheus_client takes the colon
        out of the engine's `vllm:` names in OpenMetrics, and each metric then has two names.
        """
        if _prefers_openmetrics(accept):
            body = openmetrics(self, escaping="allow-utf-8", version="1.0.0")  # type: ignore[no-untyped-call]
            return body, OPENMETRICS_TYPE
        return plain_text(self, escaping="allow-utf-8"), PLAIN_TYPE


def _prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is named and not ranked below plain text."""
    weights = dict(_weights(accept.split(",")))
    wanted = weights.get(OPENMETRICS, 0.0)
    return wanted > 0 and wanted >= weights.get("text/plain", 0.0)


def _weights(ranges: Iterable[str]) -> Iterator[tuple[str, float]]:
    for media_range in ranges:
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        text = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            yield name, float(text)
        except ValueError:
            yield name, 0.0
