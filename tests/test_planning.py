"""The simulator for planning: its arithmetic, what can never happen in it, and how near it comes to runs."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import simulate
from bench.planning import measured
from bench.planning.fleet import Promise, look, most_per_replica, needed
from bench.planning.known import MACHINES, MODELS, SMOLLM2
from bench.planning.replica import Replica
from bench.planning.shape import Engine, Machine, Model
from bench.planning.traffic import Mix, Request, arrivals

ROOT = Path(__file__).parent.parent
MACHINE = measured.machine(0.02, 0.0005)
SMALL = Engine(SMOLLM2, MACHINE, max_running=4, step_tokens=64, kv_tokens_limit=600)
MIX = Mix("agents", 400, 250, 3000, 1000, spread=0.6)
LARGE = Engine(MODELS["llama-3.1-8b"], MACHINES["h100"])
PROMISE = Promise(2.0, 0.05)
# The wait in the line of a service that refuses one in six: it predicts, where the simulator foresees.
NOT_TOLD = {"4/s: TTFT p50, ms"}


def test_every_figure_of_the_runs_but_one_is_told_within_a_quarter() -> None:
    figures = [*measured.load_test(), *measured.overload()]
    assert len(figures) == 2 * len(measured.SWEEP) + 1 + 2 * 2 * len(measured.RATES)
    assert {it.name for it in figures if abs(it.off) > 0.25} == NOT_TOLD


@pytest.mark.parametrize("pace", [measured.LOADED, measured.OVERLOADED])
def test_a_machine_has_the_pace_that_it_was_made_from(pace: measured.Pace) -> None:
    [alone] = measured.run(pace, [0.0])
    assert alone.ttft_s == pytest.approx(pace.first_s, rel=0.02)
    assert alone.total_s == pytest.approx(pace.whole_s, rel=0.03)
    together = measured.run(pace, [0.0] * measured.RUNNING)
    assert together[-1].total_s == pytest.approx(pace.full_s, rel=0.03)


def test_the_page_on_planning_shows_this_comparison() -> None:
    assert simulate.check().strip() in (ROOT / "deploy" / "PLANNING.md").read_text()


def test_a_model_has_the_weights_and_the_cache_that_its_shape_gives() -> None:
    model = MODELS["llama-3.1-8b"]
    assert model.kv_bytes_per_token == 131_072
    assert model.bytes / model.weight_bytes == pytest.approx(8.03e9, rel=0.001)
    assert SMOLLM2.bytes / 2 == pytest.approx(134.5e6, rel=0.01)


def test_a_model_of_experts_is_refused() -> None:
    config = {
        **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 1024),
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 8),
        "num_experts": 64,
    }
    with pytest.raises(ValueError, match="no dense model"):
        Model.of("experts", config)


@given(running=st.integers(1, 256), context=st.integers(1, 500_000))
def test_a_step_takes_longer_for_more_and_less_each(running: int, context: int) -> None:
    one, more = (LARGE.step_seconds(count, context) for count in (running, running + 1))
    assert more > one
    assert more / (running + 1) < one / running


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic() -> None:
    moving = replace(LARGE, machine=replace(LARGE.machine, bytes_per_s=LARGE.machine.bytes_per_s * 2))
    working = replace(LARGE, machine=replace(LARGE.machine, flops_per_s=LARGE.machine.flops_per_s * 2))
    decode, prefill = (8, 8000, 0, 0), (0, 0, 8000, 4000)
    assert moving.step_seconds(*decode) < working.step_seconds(*decode)
    assert working.step_seconds(*prefill) < moving.step_seconds(*prefill)


def test_a_lone_answer_is_one_prefill_and_a_step_for_each_further_token() -> None:
    request = Request(1.0, 0, 0, prompt=60, output=5)
    Replica(SMALL).run([request])
    assert request.ttft_s == pytest.approx(SMALL.step_seconds(0, 0, 60, 30, 1))
    each = SMALL.step_seconds(1, 61 + 4 / 2)
    assert request.total_s - request.ttft_s == pytest.approx(4 * each)


def test_a_prompt_longer_than_a_step_takes_several() -> None:
    request = Request(0.0, 0, 0, prompt=160, output=1)
    Replica(SMALL).run([request])
    chunks = [(64, 32), (64, 64 + 32), (32, 128 + 16)]
    assert request.ttft_s == pytest.approx(sum(SMALL.step_seconds(0, 0, *chunk) for chunk in chunks))
    assert request.ended == request.first


LOAD = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 300), st.integers(1, 60), st.integers(0, 3)), max_size=30
)


@given(load=LOAD, limit=st.none() | st.integers(0, 3))
def test_whatever_comes_places_and_cache_are_never_overdrawn(
    load: list[tuple[float, int, int, int]], limit: int | None
) -> None:
    requests = [
        Request(at, group, min(32, prompt - 1), prompt, output) for at, prompt, output, group in sorted(load)
    ]
    Replica(SMALL, limit, patience_s=math.inf).run(requests)
    for it in requests:
        assert it.refused == (it.ended is None) == (it.first is None)
        assert it.refused or it.at < it.ttft_s + it.at <= it.total_s + it.at
        assert 0 <= it.cached < it.prompt
    for moment in [it.first for it in requests if it.first is not None]:
        decoding = [
            it for it in requests if it.first is not None and it.first <= moment < (it.ended or math.inf)
        ]
        assert len(decoding) <= SMALL.max_running
        assert sum(it.prompt + it.output for it in decoding) <= SMALL.kv_tokens


def test_first_come_first_served() -> None:
    requests = [Request(0.001 * n, 0, 0, 40, 20) for n in range(20)]
    Replica(SMALL).run(requests)
    firsts = [it.first or math.inf for it in requests]
    assert all(one <= other for one, other in pairwise(firsts))


def test_a_line_with_an_end_refuses_and_keeps_the_others_in_time() -> None:
    endless, ended = flooded(), flooded(max_unfinished=20)
    assert not any(it.refused for it in endless)
    assert any(it.refused for it in ended)
    good = Promise(ttft_s=2.0, tpot_s=0.2).kept
    assert sum(map(good, ended)) > 3 * sum(map(good, endless))


def test_a_limit_counts_those_that_run_and_those_that_wait() -> None:
    served = [it for it in flooded(max_unfinished=6) if not it.refused]
    for one in served:
        assert sum(it.at <= one.at < it.at + it.total_s for it in served) <= 6


def test_who_would_wait_longer_than_promised_is_refused() -> None:
    requests = flooded(promise_s=1.0)
    served = [it.ttft_s for it in requests if not it.refused]
    assert 0 < len(served) < len(requests)
    assert max(served) < 1.2  # those who came later were read beside


def flooded(max_unfinished: int | None = None, promise_s: float | None = None) -> list[Request]:
    """Many more requests than can be served."""
    requests = list(arrivals(Mix("chat", 71, 32), 40, 30, 1, [0], [1.0]))
    engine = Engine(SMOLLM2, MACHINE, 16, kv_tokens_limit=46592)
    Replica(engine, max_unfinished, promise_s).run(requests)
    return requests


def test_arrivals_come_at_their_rate_and_from_groups_by_their_share() -> None:
    mix = Mix("skewed", 10, 10, 5, groups=3, skew=1.0)
    one, two, three = mix.shares()
    assert [one / two, one / three] == pytest.approx([2, 3])
    came = list(arrivals(mix, 100, 100, 1, range(3), [one, one + two, 1.0]))
    assert len(came) == pytest.approx(10_000, rel=0.05)
    assert sum(it.group == 0 for it in came) / len(came) == pytest.approx(one, rel=0.05)


def test_affinity_finds_more_in_the_cache_and_needs_fewer_replicas() -> None:
    random, affinity = (look(LARGE, MIX, 100, 20, way, PROMISE) for way in ("random", "affinity"))
    assert affinity.cached > random.cached + 0.2
    spread, kept = (needed(LARGE, MIX, 100, way, PROMISE) for way in ("random", "affinity"))
    assert spread and kept and kept < spread


def test_a_fleet_of_what_is_needed_keeps_the_promise_and_one_of_less_does_not() -> None:
    count = needed(LARGE, MIX, 60, "random", PROMISE)
    assert count is not None
    assert look(LARGE, MIX, 60, count, "random", PROMISE).good >= PROMISE.share
    assert look(LARGE, MIX, 60, count - 1, "random", PROMISE).good < PROMISE.share
    assert 60 / count < most_per_replica(LARGE, MIX)


def test_a_promise_that_no_machine_keeps_is_told() -> None:
    assert needed(LARGE, MIX, 10, "random", Promise(ttft_s=0.001)) is None


def test_every_replica_of_a_fleet_sees_its_share_of_all_requests() -> None:
    for way in ("random", "affinity"):
        seen = look(LARGE, MIX, 20, 4, way, PROMISE)
        assert len(seen.requests) == pytest.approx(20 * 40, rel=0.15)


def test_a_machine_that_is_slower_is_slower_in_everything() -> None:
    usual = replace(LARGE, machine=Machine("any", 1e12, 1e14, 80e9, 0.5, 0.001, 1e-5))
    slow = replace(usual, machine=usual.machine.slower(2))
    assert slow.step_seconds(8, 900, 50, 25) == pytest.approx(2 * usual.step_seconds(8, 900, 50, 25))


def test_the_command_says_what_is_needed_and_what_does_not_fit() -> None:
    command = [sys.executable, "-m", "bench.simulate", "--rates", "20"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("| 20 |") == 2
    said = subprocess.run(
        [*command, "--model", "qwen3-32b", "--machine", "l4"], cwd=ROOT, capture_output=True, text=True
    )
    assert said.returncode == 1
    assert "do not fit l4" in said.stderr
