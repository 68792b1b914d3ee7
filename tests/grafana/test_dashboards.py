"""Every panel and rule on a real Prometheus over the real service, after a load that met every branch."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.grafana.ground import Ground, ground
from tests.grafana.load import MIDDLING
from tests.grafana.prometheus import Series
from tests.grafana.written import concrete, expressions, metrics, rules, shown, watched

pytestmark = pytest.mark.engine

# Read by panels and not there yet, with the reason. An entry that is no longer true is a failure.
OF_PROMETHEUS = {"up"}

# What the load is for. Each of these has happened, or panels were drawn over nothing.
HAPPENED = {
    "preemption": "vllm:num_preemptions_total",
    "waiting in the engine": "max_over_time(vllm:num_requests_waiting[5m])",
    "waiting before it": 'max_over_time(twophase_inflight{state="admission"}[5m])',
    "callers sent away": 'twophase_requests_total{outcome="overloaded"}',
    "a tenant over its quota": 'twophase_requests_total{outcome="rate_limited"}',
    "promised cache": "max_over_time(twophase_kv_reserved_tokens[5m])",
    "prompts found in the cache": "vllm:prefix_cache_hits_total",
    "text never seen": 'twophase_cache_miss_total{cause="never seen"}',
    "matches that end at a block": 'twophase_cache_miss_total{cause="block boundary"}',
    "first tokens that were predicted": "twophase_prediction_error_ratio_count",
    "hits by our count": 'sum(twophase_ttft_seconds_count{cache="hit"})',
    "misses by our count": 'sum(twophase_ttft_seconds_count{cache="miss"})',
    "long prompts": 'sum(twophase_ttft_seconds_count{prompt_bucket="4097-16384"})',
    "crowds": 'sum(twophase_tpot_seconds_count{concurrency_bucket="5-16"})',
    "callers who left": 'twophase_requests_total{outcome="client_abort"}',
    "tokens for nobody": 'twophase_tokens_total{kind="wasted"}',
    "nonsense": 'twophase_requests_total{outcome="invalid"}',
    "prompts refused": 'sum(twophase_budget_actions_total{action="rejected"})',
    "history left out": 'sum(twophase_budget_actions_total{action="truncated"})',
    "outputs clamped": 'sum(twophase_budget_actions_total{action="clamped"})',
    "first tokens too late": 'twophase_slo_total{slo="ttft", result="missed"}',
    "first tokens in time": 'twophase_slo_total{slo="ttft", result="met"}',
    "tokens of a tenant": 'twophase_tenant_tokens_total{tenant="acme", kind="output"}',
    "verdict queue": 'twophase_bound_by_total{phase="queue"}',
    "verdict prefill": 'twophase_bound_by_total{phase="prefill"}',
    "verdict decode": 'twophase_bound_by_total{phase="decode"}',
}


@pytest.fixture(scope="module")
def loaded(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """One service and one Prometheus for all tests here."""
    with ground(cache, tmp_path_factory.mktemp("ground")) as made:
        yield made


def series_of(loaded: Ground, expr: str) -> list[Series]:
    """What an expression was during the load, without the moments at which it was no number."""
    found = loaded.prometheus.over(expr, loaded.began_s, loaded.ended_s)
    numbers = [Series(s.labels, [at for at in s.samples if not math.isnan(at[1])]) for s in found]
    return [series for series in numbers if series.samples]


@pytest.mark.parametrize("what", HAPPENED)
def test_the_load_met_every_branch(loaded: Ground, what: str) -> None:
    assert loaded.prometheus.number(HAPPENED[what]) > 0


@pytest.mark.parametrize("query", shown(), ids=str)
def test_a_panel_has_data_that_its_unit_allows(loaded: Ground, query: Any) -> None:
    expr = concrete(query.expr)
    found = series_of(loaded, expr)
    least, most = query.range
    assert found
    for series in found:
        wrong = [value for _, value in series.samples if not least <= value <= most * (1 + 1e-9)]
        assert not wrong, series.labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_works_on_what_is_there(loaded: Ground, rule: dict[str, Any]) -> None:
    """An alert is silent most of the time: what it compares must be there."""
    for expr in watched(rule["expr"]) if "alert" in rule else [rule["expr"]]:
        found = series_of(loaded, expr)
        assert found, expr
        assert all(value >= 0 for series in found for _, value in series.samples)


def test_no_rule_fails(loaded: Ground) -> None:
    seen = loaded.prometheus.rules()
    assert len(seen) == len(rules())
    assert {rule["health"] for rule in seen} == {"ok"}, [rule.get("lastError") for rule in seen]


def test_every_metric_we_read_is_in_a_scrape_under_that_name(loaded: Ground) -> None:
    page = loaded.page()
    served = set(re.findall(r"^([a-zA-Z_:][\w:]*)[{ ]", page, re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = {name for expr in expressions().values() for name in metrics(expr)}
    assert read - served - recorded - OF_PROMETHEUS == set()


def test_metrics_read_as_rates_are_counters_and_the_others_gauges(loaded: Ground) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", loaded.page(), re.MULTILINE))
    for name in sorted({name for expr in expressions().values() for name in metrics(expr)}):
        family = re.sub(r"_(total|bucket|count|sum)$", "", name)
        if name in kinds:
            assert kinds[name] == "gauge", name
        elif family in kinds:
            assert kinds[family] == ("counter" if name.endswith("_total") else "histogram"), name


def test_shares_of_the_verdict_add_up(loaded: Ground) -> None:
    shares = 'sum(instance:twophase_pressure:ratio{by!="front_end"})'
    at_most = max(value for series in series_of(loaded, shares) for _, value in series.samples)
    assert at_most == pytest.approx(1)


def test_the_verdict_changes_with_the_load(loaded: Ground) -> None:
    (state,) = series_of(loaded, "instance:twophase_bound:state")
    assert len({value for _, value in state.samples if value}) >= 3


def test_callers_spans_and_prometheus_tell_the_same_median_wait(loaded: Ground) -> None:
    waits = span_waits(loaded)
    assert len(waits) == pytest.approx(len(loaded.seen.first_text_s), rel=0.02)
    counted = loaded.prometheus.number("sum(twophase_ttft_seconds_count)")
    assert counted == pytest.approx(len(loaded.seen.first_text_s), rel=0.02)
    least, most = map(int, MIDDLING.split("-"))
    middling = [wait for wait, tokens in waits if least <= tokens <= most]
    assert len(middling) == pytest.approx(len(loaded.seen.middling_first_text_s), rel=0.02)
    by_spans = statistics.median(middling)
    by_callers = statistics.median(loaded.seen.middling_first_text_s)
    buckets = f'sum by (le) (twophase_ttft_seconds_bucket{{prompt_bucket="{MIDDLING}"}})'
    by_prometheus = loaded.prometheus.number(f"histogram_quantile(0.5, {buckets})")
    assert by_spans == pytest.approx(by_callers, rel=0.1)
    assert by_prometheus == pytest.approx(by_spans, rel=0.1)


def test_exemplars_lead_from_a_panel_to_a_trace_that_was_exported(loaded: Ground) -> None:
    traces = {span.trace_id.hex() for span in loaded.collector.spans}
    for query in shown():
        if query.target["exemplar"]:
            found = loaded.prometheus.exemplars(concrete(query.expr), loaded.began_s, loaded.ended_s)
            assert found, str(query)
            assert {exemplar["labels"]["trace_id"] for exemplar in found} <= traces


def test_phases_of_preempted_requests_lie_one_after_the_other_inside_their_request(loaded: Ground) -> None:
    traces: dict[bytes, list[Span]] = {}
    for span in loaded.collector.spans:
        traces.setdefault(span.trace_id, []).append(span)
    preempted = [
        spans
        for spans in traces.values()
        if any(event.name == "preempted" for span in spans for event in span.events)
        and any(span.name.startswith("POST") for span in spans)
    ]
    assert preempted
    for spans in preempted:
        [root] = [span for span in spans if span.name.startswith("POST")]
        [chat] = [span for span in spans if span.name.startswith("chat ")]
        phases = [span for span in spans if span.parent_span_id == chat.span_id]
        ends = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in phases]
        times = [root.start_time_unix_nano, *(at for end in sorted(ends) for at in end)]
        assert times == sorted(times) and times[-1] <= root.end_time_unix_nano
        for span in phases:
            for event in span.events:
                assert span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano


def span_waits(loaded: Ground) -> list[tuple[float, int]]:
    """Times to first token as the spans have them, of requests whose caller saw a first token, and the
    tokens of their prompts."""
    first_s: dict[bytes, float] = {}
    tokens: dict[bytes, int] = {}
    for span in loaded.collector.spans:
        attributes = {item.key: item.value for item in span.attributes}
        if span.name.startswith("POST") and "twophase.ttft_ms" in attributes:
            first_s[span.trace_id] = attributes["twophase.ttft_ms"].double_value / 1000
        elif "gen_ai.usage.input_tokens" in attributes:
            tokens[span.trace_id] = attributes["gen_ai.usage.input_tokens"].int_value
    return [(wait_s, tokens[trace]) for trace, wait_s in first_s.items()]
