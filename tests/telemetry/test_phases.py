from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.protocol import EngineClock
from service.errors import EngineUnavailable, InvalidValue
from service.telemetry.phases import Phases, phases
from service.telemetry.record import ChoiceRecord, RequestRecord
from tests.telemetry.records import START_S, abandoned, answered, choice, record, refused, waiting_choice

LATER_S = START_S + 3600  # when a closed record is looked at: long after its end


def of(made: RequestRecord, now: float | None = None) -> Phases:
    return phases(made, LATER_S if now is None else START_S + now)


def test_phases_lie_end_to_end_from_rendering_to_the_last_token() -> None:
    found = of(answered())
    assert found.render_ms == pytest.approx(8)
    assert found.admission_ms == pytest.approx(10)
    assert found.queue_ms == pytest.approx(180)
    assert found.prefill_ms == pytest.approx(800)
    assert found.decode_ms == pytest.approx(3000)
    assert found.total_ms == pytest.approx(4003)


def test_the_first_token_is_no_decode_step() -> None:
    found = of(answered(choice(tokens=31)))
    assert found.decode_steps == 30
    assert found.tpot_ms == pytest.approx(100)


def test_an_answer_of_one_token_has_no_decode() -> None:
    found = of(answered(choice(first=1.0, last=1.0, tokens=1), end=1.003))
    assert (found.decode_steps, found.decode_ms, found.tpot_ms) == (0, 0.0, 0.0)


def test_the_worked_example_comes_out() -> None:
    """Prefill 0.8 s and 25 tokens a second for 180 tokens: 0.84 s to the first token, about 8 s in all."""
    made = choice(scheduled=0.04, first=0.84, last=0.84 + 179 / 25, tokens=180)
    found = of(answered(made, end=0.84 + 179 / 25 + 0.002, admitted=0.02))
    assert found.first_token_ms == pytest.approx(841)
    assert found.tpot_ms == pytest.approx(40)
    assert found.total_ms == pytest.approx(8002)


def test_queue_begins_with_the_slot_and_has_the_way_to_the_engine_in_it() -> None:
    found = of(answered(admitted=0.02, submitted=0.15))
    assert found.queue_ms == pytest.approx(180)


def test_a_stream_is_there_early_and_a_whole_answer_at_its_end() -> None:
    streamed = of(answered())
    whole = of(answered(stream=False, first_content=None))
    assert streamed.ttft_ms == pytest.approx(1002)
    assert whole.ttft_ms == pytest.approx(4003)
    assert streamed.total_ms == whole.total_ms
    assert streamed.first_token_ms == whole.first_token_ms


def test_role_and_empty_deltas_do_not_stop_the_clock() -> None:
    assert of(answered(first_content=1.7)).ttft_ms == pytest.approx(1700)


def test_cached_tokens_are_not_computed() -> None:
    found = of(answered(choice(cached=64), prompt_tokens=100))
    assert (found.cached_tokens, found.computed_tokens) == (64, 36)


def test_preemptions_of_all_answers_are_counted() -> None:
    found = of(answered(choice(preempted=(2.0, 3.0)), choice(preempted=(2.5,))))
    assert found.preemptions == 3


def test_several_answers_are_one_queue_one_prefill_one_decode() -> None:
    found = of(answered(choice(0.2, 1.0, 3.0, tokens=21), choice(0.3, 1.5, 4.0, tokens=26)))
    assert found.queue_ms == pytest.approx(180)
    assert found.prefill_ms == pytest.approx(800)
    assert found.decode_ms == pytest.approx(3000)
    assert found.decode_steps == 45
    assert found.tpot_ms == pytest.approx(100), "the pace within one answer, not of all together"


def test_without_the_engines_clock_the_queue_is_unknown_and_prefill_has_it() -> None:
    found = of(answered(choice(clock=False)))
    assert found.queue_ms is None
    assert found.prefill_ms == pytest.approx(981)
    assert found.decode_ms == pytest.approx(3000)
    assert found.bound_by == "decode"


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
def test_a_clock_of_another_machine_is_not_believed(shift: float) -> None:
    made = choice()
    was = made.clock
    assert was is not None
    made.clock = replace(
        was,
        scheduled_s=was.scheduled_s + shift,
        first_token_s=was.first_token_s + shift,
        last_token_s=was.last_token_s + shift,
    )
    assert of(answered(made)).queue_ms is None


def test_a_clock_the_engine_never_set_is_not_believed() -> None:
    made = choice()
    made.clock = EngineClock(0.0, 0.0, 0.0, 0.0, 0, 0)
    assert of(answered(made)).queue_ms is None


def test_a_refused_request_has_the_phases_it_came_to() -> None:
    found = of(refused(InvalidValue("no")))
    assert found.render_ms == pytest.approx(2)
    assert (found.admission_ms, found.queue_ms, found.prefill_ms, found.decode_ms) == (None,) * 4
    assert (found.ttft_ms, found.bound_by) == (None, None)


def test_a_request_refused_unread_has_no_phase() -> None:
    found = of(refused(InvalidValue("no"), parsed=None))
    assert set(found.named().values()) == {None}
    assert found.total_ms == pytest.approx(4)


def test_a_request_abandoned_before_its_first_token_has_neither_queue_nor_prefill() -> None:
    found = of(abandoned(waiting_choice()))
    assert (found.queue_ms, found.prefill_ms, found.decode_ms, found.bound_by) == (None,) * 4
    assert found.computed_tokens == 0


def test_an_answer_abandoned_on_the_way_was_decoding_to_the_end() -> None:
    found = of(abandoned(choice(last=1.5, tokens=6, finish=None), at=2.0, first_content=1.002))
    assert found.decode_ms == pytest.approx(1000)
    assert found.total_ms == pytest.approx(2000)


def test_a_failure_after_a_stall_belongs_to_decode() -> None:
    error = EngineUnavailable("gone")
    found = of(record(choice(last=1.5, finish=None), error=error, first_content=1.1, last_byte=60, closed=60))
    assert found.decode_ms == pytest.approx(59_000)


def test_the_last_chunk_carries_phases_before_the_request_is_over() -> None:
    made = answered(last_byte=None, closed=None)
    found = of(made, now=4.0015)
    assert found.total_ms == pytest.approx(4001.5)
    assert found.report()["bound_by"] == "decode"
    assert all(value is not None for value in found.report().values())


def test_the_report_has_the_names_of_the_contract_in_order() -> None:
    names = ["render", "admission", "queue", "prefill", "decode", "ttft", "total", "tpot"]
    rest = ["decode_steps", "reasoning_tokens", "computed_tokens", "cached_tokens", "preemptions"]
    rest += ["bound_by", "cache"]
    assert list(of(answered()).report()) == [f"{name}_ms" for name in names] + rest


def test_server_timing_names_the_phases_and_the_total() -> None:
    assert of(answered()).server_timing() == (
        "render;dur=8.000, admission;dur=10.000, queue;dur=180.000, prefill;dur=800.000, "
        "decode;dur=3000.000, total;dur=4003.000"
    )


def test_bound_by_prefill_for_a_long_prompt_and_one_token() -> None:
    assert of(answered(choice(0.1, 1.2, 1.2, tokens=1), end=1.21)).bound_by == "prefill"


def test_bound_by_decode_for_a_long_answer() -> None:
    assert of(answered(choice(0.03, 0.2, 8.0, tokens=200), end=8.01)).bound_by == "decode"


def test_bound_by_queue_for_a_request_that_waits_in_the_engine() -> None:
    assert of(answered(choice(6.0, 6.3, 7.0), end=7.01)).bound_by == "queue"


def test_bound_by_queue_for_a_request_that_waits_for_its_slot() -> None:
    made = choice(6.0, 6.3, 7.0)
    assert of(answered(made, end=7.01, admitted=5.9, submitted=5.91)).bound_by == "queue"


def test_bound_by_client_when_bytes_wait_after_the_engines_end() -> None:
    slow = replace(answered(choice(0.1, 0.2, 1.2), end=9.0), client_wait_s=8.0, engine_end_wait_s=0.5)
    assert of(slow).bound_by == "client"


def test_bound_by_client_while_it_still_does_not_read() -> None:
    slow = answered(choice(0.1, 0.2, 1.2), last_byte=None, closed=None)
    slow.client_behind_s = START_S + 0.9
    slow.engine_end_wait_s = 0.301
    assert of(slow, now=9.0).bound_by == "client"


def test_a_client_that_catches_up_before_the_engines_end_costs_nothing() -> None:
    lagging = replace(answered(choice(0.1, 0.2, 4.0)), client_wait_s=3.0, engine_end_wait_s=3.0)
    assert of(lagging).bound_by == "decode"


def test_bound_by_client_when_it_sends_its_body_slowly() -> None:
    late = {"read": 9.0, "parsed": 9.001, "rendered": 9.01, "admitted": 9.02, "submitted": 9.022}
    assert of(answered(choice(9.1, 9.2, 9.5), end=9.51, **late)).bound_by == "client"


def test_bound_by_service_when_it_is_busy_with_others_before_it_takes_a_request_up() -> None:
    late = {"read": 9.0, "parsed": 9.001, "rendered": 9.01, "admitted": 9.02, "submitted": 9.022}
    waited = answered(choice(9.1, 9.2, 9.5), end=9.51, **late)
    waited.begun_s = waited.received_s + 8.99
    assert of(waited).bound_by == "service"
    assert of(waited).total_ms == pytest.approx(9510)


def test_bound_by_service_when_rendering_takes_longest() -> None:
    late = {"rendered": 5.0, "admitted": 5.01, "submitted": 5.02}
    assert of(answered(choice(5.1, 5.2, 5.5), end=5.51, **late)).bound_by == "service"


def test_bound_by_service_when_a_made_answer_is_handed_over_late() -> None:
    assert of(answered(choice(0.1, 0.2, 0.5), end=3.0)).bound_by == "service"


times = st.floats(0, 10) | st.none()


@settings(deadline=None)
@given(
    borders=st.lists(times, min_size=7, max_size=7),
    clock=st.lists(st.floats(-2, 12), min_size=3, max_size=3),
    deltas=st.lists(st.floats(0, 10), min_size=2, max_size=2).map(sorted),
    finished=st.booleans(),
    tokens=st.integers(1, 100),
)
def test_no_times_make_a_phase_negative_or_longer_than_the_whole(
    borders: list[float | None], clock: list[float], deltas: list[float], finished: bool, tokens: int
) -> None:
    made = ChoiceRecord(
        first_delta_s=START_S + deltas[0],
        last_delta_s=START_S + deltas[1],
        output_tokens=tokens,
        finish="stop" if finished else None,
        clock=EngineClock(START_S, START_S + clock[0], START_S + clock[1], START_S + clock[2], 0, 0),
    )
    names = ("read", "parsed", "rendered", "admitted", "submitted", "first_content", "closed")
    found = of(record(made, **dict(zip(names, borders, strict=True))), now=10.5)  # type: ignore[arg-type]
    lengths = [ms for ms in found.named().values() if ms is not None]
    assert all(ms >= 0 for ms in lengths)
    assert sum(lengths) <= found.total_ms + 1e-6
    assert found.ttft_ms is None or 0 <= found.ttft_ms <= found.total_ms
