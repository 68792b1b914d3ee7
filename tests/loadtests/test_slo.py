"""What counts as good, and what decides the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.sample import FAILURES, OUTCOMES, Outcome
from loadtests.slo import DEFAULT, BadSlo, Good, Slo, read_slo
from tests.loadtests.samples import row, sample


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "slo.toml"
    path.write_text(text)
    return path


def test_an_answer_is_good_when_every_promise_is_kept() -> None:
    assert Good()(sample(1999))
    assert not Good()(sample(2001))
    assert not Good(total_ms=250)(sample(100))
    assert not Good(tpot_ms=19)(sample(100))
    assert Good(tpot_ms=21)(sample(100))


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "ok"])
def test_nothing_but_a_complete_answer_is_good(outcome: Outcome) -> None:
    assert not Good()(sample(outcome=outcome))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_failures_fail_the_run_and_refusals_do_not(outcome: Outcome) -> None:
    faults = Slo().faults([row([sample(), sample(outcome=outcome)])], None)
    assert bool(faults) == (outcome in FAILURES)


def test_a_schedule_that_was_not_kept_fails_the_run() -> None:
    late = [sample(lag_ms=21.0) for _ in range(10)]
    assert "21 ms late" in Slo().faults([row(late)], None)[0]
    assert not Slo().faults([row([sample(lag_ms=19.0)])], None)


def test_users_who_wait_for_answers_have_no_schedule() -> None:
    closed = row([sample(lag_ms=50.0)], part="concurrency", rate=0.0, users=4)
    assert not Slo().faults([closed], None)


def test_limits_hold_for_their_part_only(tmp_path: Path) -> None:
    slo = read_slo(written(tmp_path, "[limits.steady]\nttft_p95_ms = 90\ngood_share = 0.5\n"))
    assert slo.faults([row([sample()], part="steady")], None) == [
        "steady 1.0/s: ttft_p95_ms is 100, at most 90 was promised"
    ]
    assert not slo.faults([row([sample()], part="burst")], None)


def test_a_knee_can_be_promised(tmp_path: Path) -> None:
    slo = read_slo(written(tmp_path, "[limits.sweep]\nknee_per_s = 2\n"))
    assert slo.faults([row([sample()])], 1.5)
    assert not slo.faults([row([sample()])], 2.5)


def test_a_run_without_requests_proves_nothing() -> None:
    assert Slo().faults([], None) == ["no request was sent"]


def test_the_default_file_says_what_the_defaults_are() -> None:
    assert read_slo(DEFAULT) == Slo()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[godo]\n", "there are good, hold"),
        ("[good]\nttft = 3\n", "it has ttft_ms"),
        ("[good]\nttft_ms = '3'\n", "has to be a number"),
        ("[limits.steady]\nttft_p94_ms = 3\n", "it has ttft_p50_ms"),
        ("[", "slo.toml"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadSlo, match=says):
        read_slo(written(tmp_path, text))
