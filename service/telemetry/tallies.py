"""What is counted of a request that is over: of every one, of those that got a token, and their tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter

from service.budget.limits import Source
from service.errors import BudgetExceeded
from service.telemetry import buckets
from service.telemetry.collectors import BulkHistogram
from service.telemetry.families import counters, histograms
from service.telemetry.outcome import FAULTS
from service.telemetry.phases import BoundBy, Phases
from service.telemetry.record import Outcome, RequestRecord

OTHER_TENANTS = "other"
ANONYMOUS_TENANT = "anonymous"
MOST_TENANTS = 40  # more of them share one label value, so that a long tenants file cannot flood a Prometheus

PROMPT_BOUNDS = (256, 1024, 4096, 16384, 65536)
PROMPT_BUCKETS = ("1-256", "257-1024", "1025-4096", "4097-16384", "16385-65536", "65537+")
CROWD_BOUNDS = (1, 4, 16, 64)
CROWD_BUCKETS = ("1", "2-4", "5-16", "17-64", "65+")


class Requests:
    """Of every request, answered or not."""

    def __init__(self, registry: CollectorRegistry, slo_ttft_s: float) -> None:
        self._slo_ttft_ms = 1e3 * slo_ttft_s
        outcomes = {"outcome": get_args(Outcome)}
        self._count = counters(
            registry, "twophase_requests_total", "Chat requests by how they ended", outcomes
        )
        self._seconds = histograms(
            registry,
            "twophase_request_seconds",
            "Time from request to last byte, or to where it ended",
            outcomes,
            buckets.REQUEST_S,
        )
        self._phase_s = histograms(
            registry,
            "twophase_phase_seconds",
            "Time in one phase of a request",
            {"phase": ("render", "admission", "queue", "prefill", "decode")},
            buckets.PHASE_S,
        )
        self._budget_actions = counters(
            registry,
            "twophase_budget_actions_total",
            "Prompts cut, outputs clamped and requests refused for a token budget, by whose limit it was",
            {"action": ("truncated", "clamped", "rejected"), "limit": get_args(Source)},
        )
        self._slo = counters(
            registry,
            "twophase_slo_total",
            "Promises met and missed: ttft is the time to the first token, availability an answer at all",
            {"slo": ("ttft", "availability"), "result": ("met", "missed")},
        )

    def observe(self, record: RequestRecord, phases: Phases, outcome: Outcome, trace_id: str | None) -> None:
        exemplar = _exemplar(trace_id)
        self._count[outcome,].inc()
        self._seconds[outcome,].observe(phases.total_ms / 1e3, exemplar)
        for name, ms in phases.named().items():
            if ms is not None and (name != "decode" or phases.decode_steps):
                self._phase_s[name,].observe(ms / 1e3, exemplar)
        self._observe_budget(record)
        self._observe_slo(record, phases, outcome)

    def _observe_budget(self, record: RequestRecord) -> None:
        budget = record.budget
        if isinstance(record.error, BudgetExceeded):
            self._budget_actions["rejected", record.error.limit].inc()
        if budget is not None and budget.truncated_by is not None:
            self._budget_actions["truncated", budget.truncated_by].inc()
        if budget is not None and budget.clamped_from is not None:
            self._budget_actions["clamped", budget.output_limited_by].inc()

    def _observe_slo(self, record: RequestRecord, phases: Phases, outcome: Outcome) -> None:
        """Only our faults break a promise, and a caller who leaves before the time is up proves nothing."""
        if outcome == "ok" or outcome in FAULTS:
            self._slo["availability", "missed" if outcome in FAULTS else "met"].inc()
        ttft_ms = _ttft_ms(record, phases)
        if ttft_ms is not None:
            self._slo["ttft", "met" if ttft_ms <= self._slo_ttft_ms else "missed"].inc()
        elif outcome == "client_abort" and phases.total_ms > self._slo_ttft_ms:
            self._slo["ttft", "missed"].inc()


class Answers:
    """Of requests that got a token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bound_by = counters(
            registry,
            "twophase_bound_by_total",
            "Answers by what took most of their time",
            {"phase": get_args(BoundBy)},
        )
        self._ttft_s = histograms(
            registry,
            "twophase_ttft_seconds",
            "Time from request to the first content handed to the client, queue included; for an answer that "
            "is not streamed, to its first token. A hit had half its prompt or more in the prefix cache",
            {"prompt_bucket": PROMPT_BUCKETS, "cache": ("hit", "miss")},
            buckets.TTFT_S,
        )
        self._tpot_s = histograms(
            registry,
            "twophase_tpot_seconds",
            "Time per output token after the first, by how many answers were being written meanwhile",
            {"concurrency_bucket": CROWD_BUCKETS},
            buckets.TPOT_S,
        )
        self._gap_s = BulkHistogram(
            "twophase_chunk_gap_seconds",
            "Time between two chunks of a streamed answer",
            buckets.GAP_S,
            registry,
        )

    def observe(self, record: RequestRecord, phases: Phases, bound_by: BoundBy, trace_id: str | None) -> None:
        exemplar = _exemplar(trace_id)
        self._bound_by[bound_by,].inc()
        if (ttft_ms := _ttft_ms(record, phases)) is not None:
            self._ttft_s[_prompt_labels(record, phases)].observe(ttft_ms / 1e3, exemplar)
        if phases.decode_steps:
            crowd = CROWD_BUCKETS[bisect_left(CROWD_BOUNDS, round(_company(record)))]
            self._tpot_s[crowd,].observe(phases.tpot_ms / 1e3, exemplar)
        if record.stream:
            self._observe_gaps(record, trace_id)

    def _observe_gaps(self, record: RequestRecord, trace_id: str | None) -> None:
        spans = (
            choice.last_delta_s - choice.first_delta_s
            for choice in record.choices
            if choice.first_delta_s is not None
        )
        self._gap_s.add(record.gaps, sum(spans))
        if trace_id is not None and any(record.gaps):
            self._gap_s.mark(record.longest_gap_s, trace_id)


class Tokens:
    """Of requests that got a token, in all and by tenant."""

    KINDS = ("input", "cached_input", "output", "reasoning", "wasted")

    def __init__(self, registry: CollectorRegistry, tenants: Sequence[str]) -> None:
        self._count = counters(
            registry,
            "twophase_tokens_total",
            "Tokens of requests that got at least one: cached_input is part of input; reasoning, and wasted "
            "(made for an answer that nobody got whole), are parts of output",
            {"kind": self.KINDS},
        )
        self._by_tenant = Counter(
            "twophase_tenant_tokens_total",
            f"The same by tenant; those beyond the first {MOST_TENANTS} that the file has had are other",
            ["tenant", "kind"],
            registry=registry,
        )
        self._tenants: dict[str, dict[str, Counter]] = {}
        self.name_tenants([OTHER_TENANTS, ANONYMOUS_TENANT, *tenants])

    def name_tenants(self, names: Iterable[str]) -> None:
        """Give each tenant of the file its series, also when it came later, while there are not too many.

        A tenant that has left keeps its series until the next start: what it used stays counted.
        """
        for name in names:
            if name not in self._tenants and len(self._tenants) < MOST_TENANTS + 2:
                self._tenants[name] = {kind: self._by_tenant.labels(name, kind) for kind in self.KINDS}

    def observe(self, record: RequestRecord, phases: Phases, outcome: Outcome) -> None:
        output = record.output_tokens
        counts = {
            "input": _prompt_tokens(record),
            "cached_input": phases.cached_tokens,
            "output": output,
            "reasoning": record.reasoning_tokens,
            "wasted": 0 if outcome == "ok" else output,
        }
        by_tenant = self._tenants.get(record.tenant) or self._tenants[OTHER_TENANTS]
        for kind, count in counts.items():
            if count:
                self._count[kind,].inc(count)
                by_tenant[kind].inc(count)


def _exemplar(trace_id: str | None) -> dict[str, str] | None:
    return None if trace_id is None else {"trace_id": trace_id}


def _prompt_tokens(record: RequestRecord) -> int:
    return 0 if record.budget is None else record.budget.prompt_tokens


def _prompt_labels(record: RequestRecord, phases: Phases) -> tuple[str, str]:
    prompt = _prompt_tokens(record)
    size = PROMPT_BUCKETS[bisect_left(PROMPT_BOUNDS, prompt)]
    return size, "hit" if 2 * phases.cached_tokens >= prompt > 0 else "miss"


def _ttft_ms(record: RequestRecord, phases: Phases) -> float | None:
    """What is counted as time to first token; None for a stream that never showed any text.

    A whole answer has no first content of its own: its first token stands in, as a stream would show it.
    """
    if not record.stream:
        return phases.first_token_ms
    return None if record.first_content_s is None else phases.ttft_ms


def _company(record: RequestRecord) -> float:
    """Answers being written at the same time, averaged over the choices."""
    known = [choice.company for choice in record.choices if choice.company is not None]
    return sum(known) / len(known) if known else 1.0
