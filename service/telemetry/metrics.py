"""All of our metrics. Labels are closed and few, and every combination is there, at 0, from the start.

A request is observed once, when it is over. What a client sends never becomes a label value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from service.budget.limits import Source
from service.errors import ContextLengthExceeded
from service.telemetry import buckets
from service.telemetry.collectors import BulkHistogram, InFlight, SpanCounts
from service.telemetry.export import Ledger
from service.telemetry.exposition import Page
from service.telemetry.outcome import FAULTS
from service.telemetry.phases import BoundBy, Phases
from service.telemetry.record import Outcome, RequestRecord

PHASES = ("render", "admission", "queue", "prefill", "decode")
TOKEN_KINDS = ("input", "cached_input", "output", "reasoning", "wasted")
ACTIONS = ("truncated", "clamped", "rejected")
CACHE = ("hit", "miss")
OTHER_TENANTS = "other"
MOST_TENANTS = 40  # more of them share one label value, so that a long tenants file cannot flood a Prometheus

PROMPT_BOUNDS = (256, 1024, 4096, 16384, 65536)
PROMPT_BUCKETS = ("1-256", "257-1024", "1025-4096", "4097-16384", "16385-65536", "65537+")
CROWD_BOUNDS = (1, 4, 16, 64)
CROWD_BUCKETS = ("1", "2-4", "5-16", "17-64", "65+")


class Metrics:
    """Counts what happens. `engine_registries` are shown on the same page; vLLM's is the default one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        slo_ttft_s: float = 2.0,
        tenants: Sequence[str] = (),
        ledger: Ledger | None = None,
        engine_registries: Sequence[CollectorRegistry] = (),
    ) -> None:
        self._slo_ttft_s = slo_ttft_s
        self._page = Page([registry, *engine_registries])
        self.inflight = InFlight(registry)
        SpanCounts(ledger or Ledger(), registry)
        self._count_requests(registry)
        self._count_tokens(registry, tenants)
        self._time_requests(registry)
        self._watch_service(registry)

    def observe(
        self, record: RequestRecord, phases: Phases, outcome: Outcome, trace_id: str | None = None
    ) -> None:
        """Count a request that is over; `trace_id` only where its trace will be exported."""
        exemplar = None if trace_id is None else {"trace_id": trace_id}
        self._requests[outcome].inc()
        self._request_s[outcome].observe(phases.total_ms / 1e3, exemplar)
        self._observe_budget(record, outcome)
        self._observe_slo(record, phases, outcome)
        for name, ms in phases.named().items():
            if ms is not None and (name != "decode" or phases.decode_steps):
                self._phase_s[name].observe(ms / 1e3, exemplar)
        if phases.bound_by is not None:
            self._observe_answer(record, phases, outcome, exemplar)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, by an Accept header. Takes milliseconds: not for the event loop."""
        return self._page.render(accept)

    def set_ready(self, ready: bool) -> None:
        """Whether requests are taken."""
        self._ready.set(ready)

    def set_draining(self, draining: bool) -> None:
        """Whether the service is going down."""
        self._draining.set(draining)

    def set_kv_reserved(self, tokens: int) -> None:
        """Cache tokens that admitted requests may still come to need."""
        self._kv_reserved.set(tokens)

    def set_build(self, **versions: str) -> None:
        """Versions of what runs, by name of the part."""
        self._build.info(versions)

    def observe_loop_lag(self, seconds: float) -> None:
        """How late the event loop came to a timer."""
        self._loop_lag_s.observe(seconds)

    def _observe_answer(
        self, record: RequestRecord, phases: Phases, outcome: Outcome, exemplar: dict[str, str] | None
    ) -> None:
        """What only a request with a token has."""
        if phases.bound_by is not None:
            self._bound_by[phases.bound_by].inc()
        prompt = 0 if record.budget is None else record.budget.prompt_tokens
        if (ttft_ms := _ttft_ms(record, phases)) is not None:
            hit = CACHE[0] if 2 * phases.cached_tokens >= prompt > 0 else CACHE[1]
            self._ttft_s[PROMPT_BUCKETS[bisect_left(PROMPT_BOUNDS, prompt)], hit].observe(
                ttft_ms / 1e3, exemplar
            )
        if phases.decode_steps:
            crowd = CROWD_BUCKETS[bisect_left(CROWD_BOUNDS, round(_company(record)))]
            self._tpot_s[crowd].observe(phases.tpot_ms / 1e3, exemplar)
        if record.stream:
            self._observe_gaps(record, None if exemplar is None else exemplar["trace_id"])
        self._observe_tokens(record, phases, outcome, prompt)

    def _observe_gaps(self, record: RequestRecord, trace_id: str | None) -> None:
        total = sum(
            choice.last_delta_s - choice.first_delta_s
            for choice in record.choices
            if choice.first_delta_s is not None
        )
        self._gap_s.add(record.gaps, total)
        if trace_id is not None and any(record.gaps):
            self._gap_s.mark(bisect_left(buckets.GAP_S, record.longest_gap_s), record.longest_gap_s, trace_id)

    def _observe_tokens(
        self, record: RequestRecord, phases: Phases, outcome: Outcome, prompt_tokens: int
    ) -> None:
        output = record.output_tokens
        counts = {
            "input": prompt_tokens,
            "cached_input": phases.cached_tokens,
            "output": output,
            "reasoning": record.reasoning_tokens,
            "wasted": 0 if outcome == "ok" else output,
        }
        tenant = record.tenant if record.tenant in self._tenants else OTHER_TENANTS
        for kind, count in counts.items():
            if count:
                self._tokens[kind].inc(count)
                self._tenant_tokens[tenant, kind].inc(count)

    def _observe_budget(self, record: RequestRecord, outcome: Outcome) -> None:
        budget = record.budget
        if outcome == "budget_rejected":
            of_window = isinstance(record.error, ContextLengthExceeded)
            self._budget_actions[
                "rejected", record.refused_by or ("window" if of_window else "service")
            ].inc()
        if budget is not None and budget.truncated_by is not None:
            self._budget_actions["truncated", budget.truncated_by].inc()
        if budget is not None and budget.clamped_from is not None:
            self._budget_actions["clamped", budget.output_limited_by].inc()

    def _observe_slo(self, record: RequestRecord, phases: Phases, outcome: Outcome) -> None:
        """Availability is about our faults alone. A caller who left before the promised time proves nothing."""
        if outcome == "ok" or outcome in FAULTS:
            self._slo["availability", "missed" if outcome in FAULTS else "met"].inc()
        ttft_ms = _ttft_ms(record, phases)
        limit_ms = 1e3 * self._slo_ttft_s
        if ttft_ms is not None:
            self._slo["ttft", "met" if ttft_ms <= limit_ms else "missed"].inc()
        elif outcome == "client_abort" and phases.total_ms > limit_ms:
            self._slo["ttft", "missed"].inc()

    def _count_requests(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "twophase_requests_total", "Chat requests by how they ended", ["outcome"], registry=registry
        )
        self._requests = {name: requests.labels(name) for name in get_args(Outcome)}
        bound_by = Counter(
            "twophase_bound_by_total",
            "Answers by what took most of their time",
            ["phase"],
            registry=registry,
        )
        self._bound_by = {name: bound_by.labels(name) for name in get_args(BoundBy)}
        actions = Counter(
            "twophase_budget_actions_total",
            "Prompts cut, outputs clamped and requests refused for a token budget, by whose limit it was",
            ["action", "limit"],
            registry=registry,
        )
        self._budget_actions = {key: actions.labels(*key) for key in product(ACTIONS, get_args(Source))}
        slo = Counter(
            "twophase_slo_total",
            "Promises kept and broken: ttft is the time to the first token, availability an answer without our "
            "fault",
            ["slo", "result"],
            registry=registry,
        )
        self._slo = {key: slo.labels(*key) for key in product(("ttft", "availability"), ("met", "missed"))}

    def _count_tokens(self, registry: CollectorRegistry, tenants: Sequence[str]) -> None:
        tokens = Counter(
            "twophase_tokens_total",
            "Tokens of requests that got at least one: cached_input is part of input, reasoning and wasted "
            "(made for an answer that nobody got whole) are parts of output",
            ["kind"],
            registry=registry,
        )
        self._tokens = {kind: tokens.labels(kind) for kind in TOKEN_KINDS}
        self._tenants = frozenset(["anonymous", *tenants[:MOST_TENANTS]])
        by_tenant = Counter(
            "twophase_tenant_tokens_total",
            f"The same by tenant; those beyond the first {MOST_TENANTS} of the file are counted as other",
            ["tenant", "kind"],
            registry=registry,
        )
        named = sorted({*self._tenants, OTHER_TENANTS})
        self._tenant_tokens = {key: by_tenant.labels(*key) for key in product(named, TOKEN_KINDS)}

    def _time_requests(self, registry: CollectorRegistry) -> None:
        self._request_s = _histograms(
            registry,
            "twophase_request_seconds",
            "Time from request to last byte",
            {"outcome": get_args(Outcome)},
            buckets.REQUEST_S,
        )
        self._phase_s = _histograms(
            registry,
            "twophase_phase_seconds",
            "Time in one phase of a request",
            {"phase": PHASES},
            buckets.PHASE_S,
        )
        self._tpot_s = _histograms(
            registry,
            "twophase_tpot_seconds",
            "Time per output token after the first, by how many answers were being written meanwhile",
            {"concurrency_bucket": CROWD_BUCKETS},
            buckets.TPOT_S,
        )
        ttft = Histogram(
            "twophase_ttft_seconds",
            "Time from request to the first content handed to the client, queue included; for answers that are "
            "not streamed, to the first token. A hit had half its prompt or more in the prefix cache",
            ["prompt_bucket", "cache"],
            buckets=buckets.TTFT_S,
            registry=registry,
        )
        self._ttft_s = {key: ttft.labels(*key) for key in product(PROMPT_BUCKETS, CACHE)}
        self._gap_s = BulkHistogram(
            "twophase_chunk_gap_seconds",
            "Time between two chunks of a streamed answer",
            buckets.GAP_S,
            registry,
        )

    def _watch_service(self, registry: CollectorRegistry) -> None:
        self._ready = Gauge("twophase_ready", "1 while requests are taken", registry=registry)
        self._draining = Gauge("twophase_draining", "1 while the service is going down", registry=registry)
        self._kv_reserved = Gauge(
            "twophase_kv_reserved_tokens",
            "Cache tokens that admitted requests may still come to need",
            registry=registry,
        )
        self._build = Info("twophase_build", "Versions of what runs", registry=registry)
        self._loop_lag_s = Histogram(
            "twophase_event_loop_lag_seconds",
            "How late the event loop came to a timer: every stream waits as long",
            buckets=buckets.LOOP_LAG_S,
            registry=registry,
        )


def _histograms(
    registry: CollectorRegistry,
    name: str,
    text: str,
    label: Mapping[str, Iterable[str]],
    bounds_s: Sequence[float],
) -> dict[str, Histogram]:
    """A histogram with one label, by its values."""
    ((label_name, values),) = label.items()
    histogram = Histogram(name, text, [label_name], buckets=bounds_s, registry=registry)
    return {value: histogram.labels(value) for value in values}


def _ttft_ms(record: RequestRecord, phases: Phases) -> float | None:
    """What the histogram counts: a whole answer has no first content of its own, so its first token stands in.

    A stream that never showed any text is not counted.
    """
    if not record.stream:
        return phases.first_token_ms
    return None if record.first_content_s is None else phases.ttft_ms


def _company(record: RequestRecord) -> float:
    """Answers being written at the same time, averaged over the choices."""
    known = [choice.company for choice in record.choices if choice.company is not None]
    return sum(known) / len(known) if known else 1.0
