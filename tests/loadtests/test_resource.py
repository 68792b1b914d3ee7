"""Which resource it was, told from metrics pages."""

from __future__ import annotations

import pytest

from loadtests.resource import limit_of
from loadtests.scrape import Scrape, Window, parse
from tests.loadtests.samples import row, sample

PAGE = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE twophase_inflight gauge
twophase_inflight{state="admission"} 3.0
# TYPE twophase_phase_seconds histogram
twophase_phase_seconds_bucket{le="0.1",phase="decode"} 1.0
twophase_phase_seconds_count{phase="decode"} 2.0
twophase_phase_seconds_sum{phase="decode"} 0.5
# TYPE python_info gauge
python_info{version="3"} 1.0
"""


def scrapes(*values: dict[str, float]) -> list[Scrape]:
    """One a second, within the samples' window."""
    return [Scrape(1000.0 + second / 10, value) for second, value in enumerate(values)]


def test_a_page_is_read_without_buckets_and_others_metrics() -> None:
    assert parse(PAGE) == {
        "vllm:kv_cache_usage_perc": 0.25,
        "twophase_inflight{state=admission}": 3.0,
        "twophase_phase_seconds_count{phase=decode}": 2.0,
        "twophase_phase_seconds_sum{phase=decode}": 0.5,
    }


def test_a_window_knows_means_and_rises() -> None:
    window = Window(
        scrapes({"g": 1, "h_sum": 1, "h_count": 1}, {"g": 3, "h_sum": 4, "h_count": 3}), 999, 1001
    )
    assert (window.mean("g"), window.highest("g"), window.rise("g")) == (2, 3, 2)
    assert window.mean_of("h") == 1.5
    assert window.mean("unknown") is None


@pytest.mark.parametrize(
    ("values", "resource"),
    [
        ({"vllm:kv_cache_usage_perc": 0.97}, "KV cache"),
        ({"vllm:kv_cache_usage_perc": 0.2, "vllm:num_requests_waiting": 4.0}, "batch"),
        ({"vllm:kv_cache_usage_perc": 0.2, "twophase_inflight{state=admission}": 4.0}, "batch"),
        ({"vllm:kv_cache_usage_perc": 0.2}, "compute"),
    ],
)
def test_the_resource_is_told_from_gauges(values: dict[str, float], resource: str) -> None:
    assert limit_of(row([sample()]), scrapes(values, values)).resource.startswith(resource)


def test_preemptions_are_a_full_cache_and_a_late_loop_is_the_front_end() -> None:
    preempted = scrapes({"vllm:num_preemptions_total": 1}, {"vllm:num_preemptions_total": 3})
    assert limit_of(row([sample()]), preempted).resource == "KV cache"
    lag = "twophase_event_loop_lag_seconds"
    late = scrapes({f"{lag}_sum": 0, f"{lag}_count": 0}, {f"{lag}_sum": 1, f"{lag}_count": 10})
    assert limit_of(row([sample()]), late).resource == "front end"


def test_a_late_load_generator_accuses_nobody_else() -> None:
    full = {"vllm:kv_cache_usage_perc": 1.0}
    assert limit_of(row([sample(lag_ms=80.0)]), scrapes(full, full)).resource == "load generator"


def test_a_server_without_metrics_is_not_judged() -> None:
    assert limit_of(row([sample()]), []).resource == "unknown"
