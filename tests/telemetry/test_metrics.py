from __future__ import annotations

from typing import get_args

import pytest

from service.engine.protocol import Delta
from service.errors import (
    ContextLengthExceeded,
    EngineUnavailable,
    InputBudgetExceeded,
    InvalidValue,
    Overloaded,
)
from service.prompt.causes import ADVICE
from service.prompt.difference import Miss
from service.telemetry.post import Ledger
from service.telemetry.record import Outcome, RequestRecord
from tests.telemetry.board import TRACE, Board
from tests.telemetry.records import abandoned, answered, budget, choice, record, refused, waiting_choice


def test_everything_that_matters_is_there_at_zero_from_the_start() -> None:
    board = Board()
    for name in get_args(Outcome):
        assert board.value("twophase_requests_total", outcome=name) == 0
        assert board.value("twophase_request_seconds_count", outcome=name) == 0
    for phase in ("render", "admission", "queue", "prefill", "decode"):
        assert board.value("twophase_phase_seconds_count", phase=phase) == 0
    for phase in ("queue", "prefill", "decode", "client", "service"):
        assert board.value("twophase_bound_by_total", phase=phase) == 0
    for kind in ("input", "cached_input", "output", "reasoning", "wasted"):
        assert board.value("twophase_tokens_total", kind=kind) == 0
        assert board.value("twophase_tenant_tokens_total", tenant="anonymous", kind=kind) == 0
    for state in ("render", "admission", "queue_or_prefill", "decode", "sending"):
        assert board.value("twophase_inflight", state=state) == 0
    for action in ("truncated", "clamped", "rejected"):
        assert board.value("twophase_budget_actions_total", action=action, limit="tenant") == 0
    for cause in ADVICE:
        assert board.value("twophase_cache_miss_total", cause=cause) == 0
    assert board.value("twophase_prediction_error_ratio_count") == 0
    for slo in ("ttft", "availability"):
        assert board.value("twophase_slo_total", slo=slo, result="missed") == 0
    for name in ("ready", "draining", "kv_reserved_tokens"):
        assert board.value(f"twophase_{name}") == 0
    assert board.value("twophase_chunk_gap_seconds_count") == 0
    assert board.value("twophase_event_loop_lag_seconds_count") == 0
    assert board.value("twophase_spans_total", result="dropped") == 0
    assert board.total("twophase_ttft_seconds_count") == 0
    assert board.total("twophase_tpot_seconds_count") == 0
    assert board.value("twophase_build_info") == 1


def test_there_are_at_most_1500_series_however_many_tenants() -> None:
    board = Board(tenants=[f"tenant-{number}" for number in range(500)])
    assert len(board.samples()) <= 1500


def test_requests_of_every_kind_make_no_new_series() -> None:
    board = Board(tenants=["acme"])
    before = {(sample.name, *sample.labels.items()) for sample in board.samples()}
    strange = answered()
    strange.tenant, strange.model = "../../etc/passwd", "gpt-\u00fcber"
    board.see(
        strange,
        answered(choice(cached=64), choice()),
        refused(InvalidValue("no")),
        refused(InputBudgetExceeded("no", param="messages", limit="service")),
        abandoned(waiting_choice()),
        record(choice(finish=None), error=EngineUnavailable("x"), last_byte=2, closed=2),
    )
    after = {(sample.name, *sample.labels.items()) for sample in board.samples()}
    assert after == before


def test_an_answer_is_counted_once_everywhere() -> None:
    board = Board().see(answered())
    assert board.value("twophase_requests_total", outcome="ok") == 1
    assert board.value("twophase_request_seconds_sum", outcome="ok") == pytest.approx(4.003)
    assert board.value("twophase_phase_seconds_sum", phase="queue") == pytest.approx(0.18)
    assert board.value("twophase_phase_seconds_sum", phase="decode") == pytest.approx(3.0)
    assert board.value("twophase_bound_by_total", phase="decode") == 1
    assert board.total("twophase_tpot_seconds_sum") == pytest.approx(0.1)


def test_time_to_first_token_is_the_first_content_handed_over_queue_included() -> None:
    board = Board().see(answered(first_content=1.5))
    assert board.total("twophase_ttft_seconds_count") == 1
    assert board.total("twophase_ttft_seconds_sum") == pytest.approx(1.5)


def test_requests_without_a_token_have_no_time_to_first_token() -> None:
    board = Board().see(refused(InvalidValue("no")), abandoned(waiting_choice()), refused(Overloaded("no")))
    assert board.total("twophase_ttft_seconds_count") == 0
    assert board.total("twophase_requests_total") == 3


def test_a_stream_that_showed_no_text_has_no_time_to_first_token() -> None:
    assert Board().see(answered(first_content=None)).total("twophase_ttft_seconds_count") == 0


def test_an_answer_that_is_not_streamed_counts_its_first_token() -> None:
    board = Board().see(answered(stream=False, first_content=4.002))
    assert board.total("twophase_ttft_seconds_sum") == pytest.approx(1.001)


def test_time_to_first_token_is_split_by_prompt_and_cache() -> None:
    board = Board().see(
        answered(prompt_tokens=200),
        answered(prompt_tokens=256),
        answered(prompt_tokens=257),
        answered(choice(cached=512), prompt_tokens=1000),
    )
    series = "twophase_ttft_seconds_count"
    assert board.value(series, prompt_bucket="1-256", cache="miss") == 2
    assert board.value(series, prompt_bucket="257-1024", cache="miss") == 1
    assert board.value(series, prompt_bucket="257-1024", cache="hit") == 1


def test_a_miss_is_counted_by_its_cause_once_there_was_a_token() -> None:
    missed, refused_later = answered(), abandoned(waiting_choice())
    for made in (missed, refused_later):
        made.foreseen(0, Miss(17, 0, "system prompt changed"))
    board = Board().see(missed, refused_later, answered())
    assert board.value("twophase_cache_miss_total", cause="system prompt changed") == 1
    assert board.total("twophase_cache_miss_total") == 1


def test_the_error_of_a_prediction_is_what_was_predicted_over_what_it_took() -> None:
    made = answered()  # first token after 1.001 s
    made.predicted_first_token_s = 2.002
    board = Board().see(made, answered())
    assert board.value("twophase_prediction_error_ratio_count") == 1
    assert board.value("twophase_prediction_error_ratio_sum") == pytest.approx(2)


def test_an_answer_of_one_token_has_no_pace_and_no_decode() -> None:
    board = Board().see(answered(choice(first=1.0, last=1.0, tokens=1), end=1.003))
    assert board.total("twophase_tpot_seconds_count") == 0
    assert board.value("twophase_phase_seconds_count", phase="decode") == 0
    assert board.value("twophase_phase_seconds_count", phase="prefill") == 1


def test_the_pace_is_kept_apart_by_company() -> None:
    alone, crowded = answered(), answered()
    crowded.choices[0].company = 40.2
    board = Board().see(alone, crowded)
    assert board.value("twophase_tpot_seconds_count", concurrency_bucket="1") == 1
    assert board.value("twophase_tpot_seconds_count", concurrency_bucket="17-64") == 1


def test_tokens_are_counted_by_kind_and_tenant() -> None:
    ours, wasted = answered(choice(tokens=31, cached=64)), abandoned(choice(last=1.5, tokens=6, finish=None))
    ours.tenant = wasted.tenant = "acme"
    board = Board(tenants=["acme"]).see(ours, wasted)
    counted = {"input": 200, "cached_input": 64, "output": 37, "wasted": 6, "reasoning": 0}
    for kind, count in counted.items():
        assert board.value("twophase_tokens_total", kind=kind) == count
        assert board.value("twophase_tenant_tokens_total", tenant="acme", kind=kind) == count


def test_a_tenant_nobody_named_is_other() -> None:
    strange = answered()
    strange.tenant = "who"
    board = Board().see(strange)
    assert board.value("twophase_tenant_tokens_total", tenant="other", kind="output") == 31


def test_budget_actions_name_the_limit_that_called_for_them() -> None:
    cut = answered()
    cut.budget = budget(
        dropped_messages=2, truncated_by="tenant", clamped_from=500, output_limited_by="service"
    )
    by_tenant = refused(InputBudgetExceeded("no", param="messages", limit="tenant"))
    by_window = refused(ContextLengthExceeded("no", param="messages", limit="window"))
    board = Board().see(cut, by_tenant, by_window)
    series = "twophase_budget_actions_total"
    assert board.value(series, action="truncated", limit="tenant") == 1
    assert board.value(series, action="clamped", limit="service") == 1
    assert board.value(series, action="rejected", limit="tenant") == 1
    assert board.value(series, action="rejected", limit="window") == 1
    assert board.total(series) == 4


def test_promises_are_met_or_missed() -> None:
    board = Board(slo_ttft_s=1.0).see(
        answered(first_content=0.9),
        answered(first_content=1.1),
        refused(Overloaded("no")),
        refused(InvalidValue("no")),
        abandoned(waiting_choice(), at=0.5),
        abandoned(waiting_choice(), at=1.5),
    )
    series = "twophase_slo_total"
    assert board.value(series, slo="ttft", result="met") == 1
    assert board.value(series, slo="ttft", result="missed") == 2, "one late, one who waited in vain"
    assert board.value(series, slo="availability", result="met") == 2
    assert board.value(series, slo="availability", result="missed") == 1


def test_gaps_of_a_stream_are_counted_and_those_of_a_whole_answer_are_not() -> None:
    def saw(stream: bool) -> RequestRecord:
        made = record(stream=stream)
        made.submitted(1)
        for _ in range(4):
            made.saw(Delta(0, "a", [1]))
        return made

    board = Board().see(saw(stream=True), saw(stream=False))
    assert board.value("twophase_chunk_gap_seconds_count") == 3
    assert 0 < board.value("twophase_chunk_gap_seconds_sum") < 1


def test_requests_under_way_are_shown_by_what_they_are_doing_and_none_when_idle() -> None:
    board = Board()
    inflight = board.metrics.inflight
    states = {
        "render": record(rendered=None, admitted=None, submitted=None),
        "admission": record(admitted=None, submitted=None),
        "queue_or_prefill": record(waiting_choice()),
        "decode": record(choice(finish=None)),
        "sending": record(choice()),
    }
    for made in states.values():
        inflight.add(made)
    assert inflight.counts() == dict.fromkeys(states, 1)
    for made in states.values():
        inflight.discard(made)
        inflight.discard(made)
    assert board.total("twophase_inflight") == 0


def test_spans_are_counted_from_the_ledger() -> None:
    ledger = Ledger()
    board = Board(ledger=ledger)
    ledger.exported, ledger.failed, ledger.dropped = 7, 14, 21
    assert board.value("twophase_spans_total", result="exported") == 7
    assert board.value("twophase_spans_total", result="failed") == 14
    assert board.value("twophase_spans_total", result="dropped") == 21


def test_setters_show() -> None:
    board = Board()
    board.metrics.states.show(ready=True, draining=True, kv_reserved_tokens=1234)
    board.metrics.set_build(version="1.2.3", vllm="0.32.0")
    board.metrics.observe_loop_lag(0.2)
    assert board.value("twophase_ready") == board.value("twophase_draining") == 1
    assert board.value("twophase_kv_reserved_tokens") == 1234
    assert board.value("twophase_build_info", version="1.2.3", vllm="0.32.0") == 1
    assert board.value("twophase_event_loop_lag_seconds_sum") == pytest.approx(0.2)


def test_sampled_traces_leave_exemplars_and_others_do_not() -> None:
    made = answered()
    made.gaps[3], made.longest_gap_s = 30, 0.009
    board = Board().see(made)
    assert all(sample.exemplar is None for sample in board.samples())
    board.see(made, trace_id=TRACE)
    marked = {sample.name for sample in board.samples() if sample.exemplar is not None}
    assert marked == {
        f"twophase_{name}_seconds_bucket" for name in ("request", "phase", "ttft", "tpot", "chunk_gap")
    }
