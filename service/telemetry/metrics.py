"""All of our metrics, and the page that shows them.

Labels are closed and few, and every combination is there, at 0, from the start. A request is
observed once, when it is over. What a client sends never becomes a label value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, Info, disable_created_metrics

from service.telemetry import buckets
from service.telemetry.collectors import InFlight, ShadowRefusals, SpanCounts
from service.telemetry.doorbook import Doorbook
from service.telemetry.exposition import Page
from service.telemetry.foresight import Foresight
from service.telemetry.phases import Phases
from service.telemetry.post import Ledger
from service.telemetry.record import Outcome, RequestRecord
from service.telemetry.states import States
from service.telemetry.tallies import Answers, Requests, Tokens


class Metrics:
    """Counts what happens. `engine_registries` are shown on the same page; vLLM's is the default one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        slo_ttft_s: float = 2.0,
        tenants: Sequence[str] = (),
        ledger: Ledger | None = None,
        shadow_refusals: Mapping[str, int] | None = None,
        engine_registries: Sequence[CollectorRegistry] = (),
    ) -> None:
        # A time of creation for each series would be a third of the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self.inflight = InFlight(registry)
        self._page = Page([registry, *engine_registries])
        self._requests = Requests(registry, slo_ttft_s)
        self._answers = Answers(registry)
        self._tokens = Tokens(registry, tenants)
        self._foresight = Foresight(registry)
        SpanCounts(ledger or Ledger(), registry)
        ShadowRefusals(shadow_refusals or {}, registry)
        self.states = States(registry)
        self._build = Info("twophase_build", "Versions of what runs", registry=registry)
        self._loop_lag_s = Histogram(
            "twophase_event_loop_lag_seconds",
            "How late the event loop came to a timer: every stream waits as long",
            buckets=buckets.LOOP_LAG_S,
            registry=registry,
        )

    def observe(
        self, record: RequestRecord, phases: Phases, outcome: Outcome, trace_id: str | None = None
    ) -> None:
        """Count a request that is over; `trace_id` only where its trace will be exported."""
        self._requests.observe(record, phases, outcome, trace_id)
        if phases.bound_by is not None:
            self._answers.observe(record, phases, phases.bound_by, trace_id)
            self._tokens.observe(record, phases, outcome)
            self._foresight.observe(record)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, by an Accept header. Takes milliseconds: not for the event loop."""
        return self._page.render(accept)

    def doorbook(self, routes: Iterable[str]) -> Doorbook:
        """Where requests on `routes` are counted, whether they are chats or not. Once for each app."""
        return Doorbook(self._registry, routes)

    def name_tenants(self, names: Iterable[str]) -> None:
        """Show tenants that the file has now."""
        self._tokens.name_tenants(names)

    def set_build(self, **versions: str) -> None:
        """Versions of what runs, by name of the part."""
        self._build.info(versions)

    def observe_loop_lag(self, seconds: float) -> None:
        """How late the event loop came to a timer."""
        self._loop_lag_s.observe(seconds)
