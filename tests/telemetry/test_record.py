from __future__ import annotations

import time

import pytest

from service.engine.protocol import Delta, EngineClock
from service.telemetry.buckets import GAP_S
from service.telemetry.crowd import Crowd
from service.telemetry.record import RequestRecord


def submitted(n: int = 1, crowd: Crowd | None = None) -> RequestRecord:
    record = RequestRecord("req-1", crowd=crowd)
    record.submitted(n)
    return record


def clock(preemptions: int = 0, cached: int = 0) -> EngineClock:
    now = time.monotonic()
    return EngineClock(now, now, now, now, cached, preemptions)


def test_tokens_are_counted_and_not_deltas() -> None:
    record = submitted()
    record.saw(Delta(0, "one", [1]))
    record.saw(Delta(0, "two three", [2, 3], "stop"))
    assert record.output_tokens == 3
    assert record.complete


def test_a_request_is_complete_when_every_answer_has_ended() -> None:
    record = submitted(2)
    record.saw(Delta(0, "a", [1], "stop"))
    assert not record.complete
    record.saw(Delta(1, "b", [1], "length"))
    assert record.complete


def test_an_engine_without_a_clock_ends_its_answers_all_the_same() -> None:
    record = submitted()
    record.saw(Delta(0, "a", [1], "stop", clock=None))
    assert record.complete and record.begun


def test_every_delta_after_the_first_of_its_answer_is_one_gap() -> None:
    record = submitted(2)
    for index in (0, 1, 0, 1, 0):
        record.saw(Delta(index, "a", [1]))
    assert sum(record.gaps) == 3


def test_a_pause_is_the_longest_gap_and_falls_in_its_bucket() -> None:
    record = submitted()
    record.saw(Delta(0, "a", [1]))
    time.sleep(0.06)
    record.saw(Delta(0, "b", [1]))
    assert record.longest_gap_s >= 0.06
    assert sum(record.gaps[GAP_S.index(0.05) + 1 :]) == 1


def test_a_preemption_is_noticed_once() -> None:
    record = submitted()
    record.saw(Delta(0, "a", [1], clock=clock()))
    record.saw(Delta(0, "b", [1], clock=clock(preemptions=1)))
    record.saw(Delta(0, "c", [1], "stop", clock=clock(preemptions=1)))
    assert len(record.choices[0].preempted_s) == 1


def test_cached_tokens_are_those_of_the_prompt() -> None:
    record = submitted(2)
    record.saw(Delta(0, "a", [1], clock=clock(cached=16)))
    record.saw(Delta(1, "a", [1], clock=clock(cached=32)))
    assert record.cached_tokens == 32


def test_waiting_for_the_client_adds_up_and_counts_while_it_lasts() -> None:
    record = submitted()
    record.client_stalls()
    time.sleep(0.02)
    record.client_stalls()
    assert record.waited_for_client(time.monotonic()) >= 0.02
    record.client_reads()
    waited = record.client_wait_s
    assert waited >= 0.02
    assert record.waited_for_client(time.monotonic() + 10) == waited


def test_waiting_before_the_engines_end_is_kept_apart() -> None:
    record = submitted()
    record.client_stalls()
    time.sleep(0.02)
    record.saw(Delta(0, "a", [1], "stop"))
    time.sleep(0.02)
    record.client_reads()
    assert 0.02 <= record.engine_end_wait_s <= record.client_wait_s - 0.02


def test_an_answer_knows_how_many_were_written_beside_it() -> None:
    crowd = Crowd()
    alone, other = submitted(crowd=crowd), submitted(crowd=crowd)
    alone.saw(Delta(0, "a", [1]))
    other.saw(Delta(0, "a", [1]))
    time.sleep(0.02)
    other.saw(Delta(0, "b", [1], "stop"))
    alone.saw(Delta(0, "b", [1], "stop"))
    assert other.choices[0].company == pytest.approx(2, rel=0.05)
    assert alone.choices[0].company == pytest.approx(2, rel=0.05), "though it was alone at its very end"
    assert crowd.size == 0


def test_a_close_takes_unfinished_answers_out_of_the_crowd() -> None:
    crowd = Crowd()
    record = submitted(3, crowd)
    record.saw(Delta(0, "a", [1], "stop"))
    record.saw(Delta(1, "a", [1]))
    record.close()
    record.close()
    assert crowd.size == 0
