"""Steps and their schedule."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from loadtests.plan import Plan
from loadtests.sample import Sample
from loadtests.scenarios import BURST, SCENARIOS, Wishes, steps
from loadtests.workloads import parse
from tests.loadtests.samples import sample


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "sweep"])
def test_steps_follow_each_other_and_ask_for_known_workloads(scenario: str) -> None:
    found = steps(scenario, Wishes())
    assert [step.number for step in found] == list(range(len(found)))
    assert all(before.end_s <= after.start_s for before, after in pairwise(found))
    assert all(parse(step.workload) and (step.users > 0) != step.open for step in found)


def test_users_and_rates_are_those_that_were_wished() -> None:
    assert [step.users for step in steps("closed", Wishes(users=(1, 3)))] == [1, 3]
    assert [step.rate_per_s for step in steps("open", Wishes(rates=(0.5, 7)))] == [0.5, 7]
    assert [step.rate_per_s for step in steps("burst", Wishes(rate=2))] == [2, 2 * BURST, 2]


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = Plan("http://x", "m", str(tmp_path), steps("closed", Wishes()), "run", extras={"ignore_eos": True})
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


def test_a_plan_knows_its_steps_and_pauses() -> None:
    plan = Plan("", "", "", steps("closed", Wishes(users=(1, 4), step_s=10, pause_s=5)), "run")
    first, second = plan.steps
    assert plan.step_at(first.start_s) == first
    assert plan.step_at(first.end_s) is None
    assert plan.step_at(second.start_s) == second
    assert (plan.users_by(first.start_s), plan.users_by(second.start_s)) == (1, 4)


def test_a_sample_comes_back_from_its_line() -> None:
    one = sample()
    assert Sample.from_json(one.to_json()) == one


def test_time_per_token_counts_the_steps_after_the_first() -> None:
    assert sample(100.0).tpot_ms == 20.0
