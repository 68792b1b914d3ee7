"""Metrics that prometheus_client does not count by itself: they are read off other objects at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from time import time

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from service.telemetry.post import Ledger
from service.telemetry.record import RequestRecord

STATES = ("render", "admission", "queue_or_prefill", "decode", "sending")


class BulkHistogram(Collector):
    """A histogram that takes counts for all its buckets at once: one call for all the gaps of an answer."""

    def __init__(self, name: str, text: str, bounds_s: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._bounds_s = bounds_s
        self._labels = [*(str(float(bound)) for bound in bounds_s), "+Inf"]
        self._counts = [0] * len(self._labels)
        self._exemplars: list[Exemplar | None] = [None] * len(self._labels)
        self._sum = 0.0
        registry.register(self)

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add `counts` by bucket, of values that come to `total`."""
        self._counts = [have + more for have, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def mark(self, value: float, trace_id: str) -> None:
        """Keep the trace in which `value` was seen."""
        self._exemplars[bisect_left(self._bounds_s, value)] = Exemplar({"trace_id": trace_id}, value, time())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text)
        rows = zip(self._labels, accumulate(self._counts), self._exemplars, strict=True)
        buckets = [(le, count, mark) if mark else (le, count) for le, count, mark in rows]
        family.add_metric([], buckets, self._sum)
        yield family


class InFlight(Collector):
    """Requests under way, by what they are doing. It looks at the records themselves, so it cannot drift."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._records: dict[int, RequestRecord] = {}
        registry.register(self)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Count a request in."""
        self._records[id(record)] = record

    def discard(self, record: RequestRecord) -> None:
        """Count it out; harmless when it is out already."""
        self._records.pop(id(record), None)

    def counts(self) -> dict[str, int]:
        """Requests by state."""
        counts = dict.fromkeys(STATES, 0)
        for record in list(self._records.values()):  # a copy: the scrape may run in another thread
            counts[state(record)] += 1
        return counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "twophase_inflight",
            "Chat requests under way: being read and rendered, waiting for a slot, in the engine without a "
            "token yet, being answered, or complete with bytes still to send",
            labels=["state"],
        )
        for name, count in self.counts().items():
            family.add_metric([name], count)
        yield family


class ShadowRefusals(Collector):
    """What predictions would have refused, had they been allowed to."""

    CODES = ("overloaded", "deadline_unreachable")

    def __init__(self, counts: Mapping[str, int], registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "twophase_shadow_refusals",
            "Requests served all the same that predictions would have refused, while they only record",
            labels=["code"],
        )
        for code in self.CODES:
            family.add_metric([code], self._counts.get(code, 0))
        yield family


class SpanCounts(Collector):
    """What became of the spans that were made."""

    def __init__(self, ledger: Ledger, registry: CollectorRegistry) -> None:
        self._ledger = ledger
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "twophase_spans",
            "Spans the collector took, spans it did not take, and spans given up since too many were waiting",
            labels=["result"],
        )
        family.add_metric(["exported"], self._ledger.exported)
        family.add_metric(["failed"], self._ledger.failed)
        family.add_metric(["dropped"], self._ledger.dropped)
        yield family


def state(record: RequestRecord) -> str:
    """What a request under way is doing."""
    if record.rendered_s is None:
        return "render"
    if record.admitted_s is None and record.submitted_s is None:
        return "admission"
    if not record.begun:
        return "queue_or_prefill"
    return "sending" if record.complete else "decode"
