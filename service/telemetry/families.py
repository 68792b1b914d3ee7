"""Metric families whose label values are all known: each series is made at once, and found by its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Labels = Mapping[str, Iterable[str]]
Values = tuple[str, ...]


def counters(registry: CollectorRegistry, name: str, text: str, labels: Labels) -> dict[Values, Counter]:
    """Counters by label values."""
    family = Counter(name, text, list(labels), registry=registry)
    return {values: family.labels(*values) for values in product(*labels.values())}


def histograms(
    registry: CollectorRegistry, name: str, text: str, labels: Labels, bounds_s: Sequence[float]
) -> dict[Values, Histogram]:
    """Histograms by label values."""
    family = Histogram(name, text, list(labels), buckets=bounds_s, registry=registry)
    return {values: family.labels(*values) for values in product(*labels.values())}


def gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    """A gauge without labels."""
    return Gauge(name, text, registry=registry)
