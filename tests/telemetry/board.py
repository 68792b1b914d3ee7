"""Metrics on a registry of their own, and what they show."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from service.telemetry.metrics import Metrics
from service.telemetry.outcome import outcome
from service.telemetry.phases import phases
from service.telemetry.record import RequestRecord

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Board:
    """Observes records and reads samples."""

    def __init__(self, **options: object) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, **options)  # type: ignore[arg-type]

    def see(self, *records: RequestRecord, trace_id: str | None = None) -> Board:
        """Observe records that are over."""
        for made in records:
            found = phases(made, time.monotonic())
            self.metrics.observe(made, found, outcome(made), trace_id)
        return self

    def value(self, name: str, **labels: str) -> float:
        """One sample, which must be there."""
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, f"no {name} {labels}"
        return value

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples of a name that have these labels."""
        return sum(s.value for s in self.samples() if s.name == name and labels.items() <= s.labels.items())

    def samples(self) -> list[Sample]:
        """All there is."""
        return [sample for metric in self.registry.collect() for sample in metric.samples]
