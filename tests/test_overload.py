"""The benchmark of overload: who came when, what is counted as good, and a crowd on a real server."""

from __future__ import annotations

from dataclasses import replace

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import Call, Crowd, run
from bench.overload import Turn, good, report
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.scripted import ScriptedEngine
from tests.serving import running


def crowd(rate: float = 20.0, seconds: float = 1.0, port: int = 0, tokens: int = 4) -> Crowd:
    return Crowd(rate, seconds, tokens, patience_s=5.0, seed=1, port=port, model="tiny")


def answer(**changed: object) -> Call:
    return replace(Call(0.0, 200, first_s=0.5, ended_s=3.0, whole=True, retry_after=False), **changed)  # type: ignore[arg-type]


@given(st.floats(0.5, 50), st.floats(0.5, 30))
def test_arrivals_are_in_order_inside_the_time_and_always_the_same(rate: float, seconds: float) -> None:
    times = crowd(rate, seconds).schedule()
    assert times == sorted(times) == crowd(rate, seconds).schedule()
    assert all(0 < time < seconds for time in times)


def test_as_many_come_as_the_rate_says() -> None:
    assert 900 < len(crowd(100.0, 10.0).schedule()) < 1100


def test_an_answer_is_good_when_it_is_whole_and_both_ends_are_in_time() -> None:
    assert good(answer())
    assert not good(answer(first_s=2.1))
    assert not good(answer(ended_s=10.1))
    assert not good(answer(whole=False))
    assert not good(answer(status=429, first_s=None, whole=False))


def test_the_report_counts_good_answers_a_second_and_what_the_refused_were_told() -> None:
    refused = answer(status=429, first_s=None, whole=False, ended_s=0.012, retry_after=True)
    text = report([Turn("ours", 2.0, 4.0, [answer(), answer(), answer(first_s=9.0), refused])], [2.0])
    assert "| ours | 0.50 |" in text
    assert "1 of 4 in 12 ms, 1 told when" in text


def test_a_crowd_is_answered_or_refused_and_both_are_seen(engine: ScriptedEngine, renderer: Renderer) -> None:
    """One place and no waiting: of callers who come close together, some are refused at once."""
    settings = Settings(served_model_name="tiny", max_running=1, max_waiting=0)
    for _ in range(40):
        engine.script("a ", 0.1, "b ", "c ", "d ")
    with running(settings, engine, renderer) as server:
        calls = uvloop.run(run(crowd(port=server.port)))
    whole = [call for call in calls if call.whole]
    refused = [call for call in calls if call.status == 429]
    assert whole and refused and len(whole) + len(refused) == len(calls)
    assert all(call.retry_after and call.first_s is None for call in refused)
    assert all(call.first_s is not None and call.first_s <= call.ended_s for call in whole)
