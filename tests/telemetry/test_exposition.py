from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from service.errors import InvalidValue
from tests.telemetry.board import TRACE, Board
from tests.telemetry.records import answered, refused

PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def names(families: Iterable[object]) -> set[str]:
    return {sample.name for family in families for sample in family.samples}  # type: ignore[attr-defined]


@pytest.fixture
def engine_registry() -> CollectorRegistry:
    """Metrics as the engine makes them: with a colon in their names."""
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prompt tokens", ["model_name"], registry=registry).labels("m").inc(5)
    Histogram("vllm:e2e_request_latency_seconds", "Latency", registry=registry).observe(0.2)
    return registry


def test_both_formats_say_the_same_under_the_same_names(engine_registry: CollectorRegistry) -> None:
    board = Board(engine_registries=[engine_registry], tenants=["acme"])
    board.see(answered(), refused(InvalidValue("no")), trace_id=TRACE)
    plain, plain_type = board.metrics.render()
    rich, rich_type = board.metrics.render(PROMETHEUS)
    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert rich_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"

    old = list(parse_plain(plain.decode()))
    new = list(parse_openmetrics(rich.decode()))  # type: ignore[no-untyped-call]
    assert names(old) == names(new)
    assert {"vllm:prompt_tokens_total", "vllm:e2e_request_latency_seconds_bucket"} <= names(new)

    def values(families: Iterable[object]) -> dict[object, float]:
        return {
            (s.name, *sorted(s.labels.items())): s.value
            for family in families
            for s in family.samples  # type: ignore[attr-defined]
        }

    assert values(old) == values(new)


def test_exemplars_come_back_from_openmetrics() -> None:
    board = Board().see(answered(), trace_id=TRACE)
    page = board.metrics.render(PROMETHEUS)[0].decode()
    families = parse_openmetrics(page)  # type: ignore[no-untyped-call]
    (marked,) = [
        sample
        for family in families
        if family.name == "twophase_ttft_seconds"
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert marked.exemplar is not None
    assert marked.exemplar.labels == {"trace_id": TRACE}
    assert marked.exemplar.value == pytest.approx(1.002)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        (PROMETHEUS, True),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=high", False),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, openmetrics: bool) -> None:
    body, content_type = Board().metrics.render(accept)
    assert content_type.startswith("application/openmetrics-text") == openmetrics
    assert body.endswith(b"# EOF\n") == openmetrics
