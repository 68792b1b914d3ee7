from __future__ import annotations

import asyncio
import logging
import time

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry

from service.engine.protocol import Delta, EngineClock
from service.errors import Overloaded
from service.telemetry.looplag import sample_loop_lag
from service.telemetry.metrics import Metrics
from service.telemetry.observer import AT_ONCE, Observation, Observer
from service.telemetry.traces import Traces
from tests.telemetry.records import budget
from tests.telemetry.test_traces import CALLER, SAMPLED, Recorder


class House:
    """An observer whose metrics and spans a test can read."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.registry = CollectorRegistry()
        self.observer = Observer(Metrics(self.registry), self.recorder.traces)

    def open(self) -> Observation:
        return self.observer.open("req-1", [SAMPLED], model="tiny")

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def answer(seen: Observation) -> None:
    """Fill a record as a short streamed answer does."""
    record = seen.record
    record.stream, record.status, record.budget = True, 200, budget()
    record.read_s = record.parsed_s = record.rendered_s = record.admitted_s = time.monotonic()
    record.submitted(1)
    now = time.monotonic()
    clock = EngineClock(now, now, now, now, 0, 0)
    record.saw(Delta(0, "a", [1], clock=clock))
    record.first_content_s = time.monotonic()
    record.saw(Delta(0, "b", [2], "stop", clock))
    record.last_byte_s = time.monotonic()


def test_one_close_tells_metrics_trace_and_log_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    house = House()
    seen = house.open()
    answer(seen)
    seen.close()
    assert house.value("twophase_requests_total", outcome="ok") == 1
    root = house.recorder.spans["POST /v1/chat/completions"]
    assert root.attributes is not None
    ttft_ms = root.attributes["twophase.ttft_ms"]
    assert isinstance(ttft_ms, float)
    counted = house.value("twophase_ttft_seconds_sum", prompt_bucket="1-256", cache="miss")
    assert counted == pytest.approx(ttft_ms / 1e3)
    (line,) = (one.getMessage() for one in caplog.records if one.name == "twophase.request")
    assert f"trace_id={CALLER}" in line and "outcome=ok" in line


def test_a_second_close_changes_nothing() -> None:
    house = House()
    seen = house.open()
    answer(seen)
    seen.close()
    seen.close()
    assert house.value("twophase_requests_total", outcome="ok") == 1
    assert len(house.recorder.spans) == 7


def test_the_trace_id_is_there_at_once() -> None:
    assert House().open().trace_id == CALLER


def test_a_request_is_in_flight_from_open_to_close() -> None:
    house = House()
    seen = house.open()
    assert house.value("twophase_inflight", state="render") == 1
    seen.close()
    assert house.value("twophase_inflight", state="render") == 0


def test_the_first_reason_of_a_failure_counts() -> None:
    house = House()
    seen = house.open()
    seen.failed(Overloaded("full"))
    seen.failed(ValueError("later"))
    seen.close()
    assert house.value("twophase_requests_total", outcome="overloaded") == 1


def test_an_exception_nobody_foresaw_is_a_fault_of_ours() -> None:
    house = House()
    seen = house.open()
    seen.failed(ValueError("what"))
    seen.close()
    assert house.value("twophase_requests_total", outcome="engine_error") == 1


def test_an_unsampled_request_is_counted_without_exemplar_and_span() -> None:
    house = House(Recorder(ALWAYS_OFF))
    seen = house.observer.open("req-1", [])
    answer(seen)
    seen.close()
    assert house.value("twophase_requests_total", outcome="ok") == 1
    samples = [sample for metric in house.registry.collect() for sample in metric.samples]
    assert all(sample.exemplar is None for sample in samples)
    assert house.recorder.spans == {}


def test_a_trace_that_is_dropped_leaves_no_exemplar_to_look_for() -> None:
    house = House(Recorder(full=True))
    seen = house.open()
    answer(seen)
    seen.close()
    samples = [sample for metric in house.registry.collect() for sample in metric.samples]
    assert all(sample.exemplar is None for sample in samples)


def test_a_fault_in_the_watching_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    seen = house.open()
    answer(seen)
    seen.record.choices[0].clock = "no clock"  # type: ignore[assignment]
    seen.close()
    assert "could not be accounted for" in caplog.text
    assert house.value("twophase_inflight", state="sending") == 0


def test_phases_can_be_had_while_the_request_runs() -> None:
    seen = House().open()
    answer(seen)
    seen.record.last_byte_s = None
    found = seen.phases()
    assert found.decode_steps == 1 and found.bound_by is not None


async def test_requests_that_end_together_are_told_of_together_and_streams_come_between() -> None:
    house = House()
    house.observer.start()
    for _ in range(3 * AT_ONCE):
        seen = house.open()
        answer(seen)
        seen.close()
    assert house.value("twophase_requests_total", outcome="ok") == 0
    told: list[float] = []
    async with asyncio.timeout(60):
        while not told or told[-1] < 3 * AT_ONCE:
            told.append(house.value("twophase_requests_total", outcome="ok") or 0)
            await asyncio.sleep(0)
    assert {AT_ONCE, 2 * AT_ONCE} < set(told)
    await house.observer.aclose()


async def test_nobody_who_asks_has_to_wait_for_the_others() -> None:
    house = House()
    house.observer.start()
    for ask in (house.observer.tell, house.observer.aclose):
        seen = house.open()
        answer(seen)
        before = house.value("twophase_requests_total", outcome="ok") or 0
        seen.close()
        if (waiting := ask()) is not None:
            await waiting
        assert house.value("twophase_requests_total", outcome="ok") == before + 1


async def test_the_loops_lag_is_seen() -> None:
    lags: list[float] = []
    sampling = asyncio.create_task(sample_loop_lag(lags.append, 0.01))
    await asyncio.sleep(0.05)
    time.sleep(0.1)  # noqa: ASYNC251  something blocks the loop
    await asyncio.sleep(0.05)
    sampling.cancel()
    assert max(lags) > 0.05
    assert min(lags) < 0.05


async def test_an_observer_measures_its_loop_until_it_is_closed() -> None:
    house = House()
    house.observer.start()
    await asyncio.sleep(0.25)
    await house.observer.aclose()
    counted = house.value("twophase_event_loop_lag_seconds_count")
    assert counted is not None and counted >= 1


async def test_an_observer_without_tracing_closes() -> None:
    await Observer(Metrics(CollectorRegistry()), Traces()).aclose()
