"""What is asked, and when."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.arrivals import poisson, share
from loadtests.workloads import LONGEST, PRESETS, Ask, parse


def ask(text: str, number: int, run: str = "run", replies: dict[tuple[int, int], str] | None = None) -> Ask:
    """One request of a workload."""
    return parse(text).ask(number, 1, run, replies or {})


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_seed_asks_the_same(name: str) -> None:
    assert [ask(name, n) for n in range(30)] == [ask(name, n) for n in range(30)]


@pytest.mark.parametrize("name", ["chat", "long-prompt", "lognormal"])
def test_cold_prompts_begin_differently_in_every_request_and_every_run(name: str) -> None:
    asked = [ask(name, n, run).messages[0]["content"] for n in range(50) for run in ("one", "two")]
    beginnings = {" ".join(text.split()[:8]) for text in asked}
    assert len(beginnings) == len(asked)


def test_lengths_are_the_same_in_every_run() -> None:
    assert ask("lognormal", 3, "one").words == ask("lognormal", 3, "two").words


def test_warm_prompts_come_again_and_again() -> None:
    asked = {ask("chat,warm=1,prompts=3", n, str(n)).messages[0]["content"] for n in range(30)}
    assert len(asked) == 3


def test_groups_share_their_system_prompt_and_nothing_else() -> None:
    asked = [ask("shared-prefix,groups=2", n).messages for n in range(20)]
    assert len({messages[0]["content"] for messages in asked}) == 2
    assert len({messages[1]["content"] for messages in asked}) == 20
    assert len(asked[0][0]["content"].split()) == 600


def test_a_conversation_grows_by_what_was_answered() -> None:
    text = "multi-turn,talks=2,turns=3"
    first, second = ask(text, 0), ask(text, 2, replies={(0, 0): "The real reply."})
    assert second.messages[0] == first.messages[0]
    assert second.messages[1] == {"role": "assistant", "content": "The real reply."}
    assert [len(ask(text, n).messages) for n in range(7)] == [1, 1, 3, 3, 5, 5, 1]


def test_a_mixture_has_all_kinds() -> None:
    kinds = {ask("mixed", n).kind for n in range(200)}
    assert kinds == {"chat", "shared-prefix", "multi-turn", "long-answer", "long-prompt"}


def test_drawn_lengths_have_the_median_that_was_asked_for_and_an_end() -> None:
    words = [ask("lognormal,words=100,spread=0.8", n).words for n in range(400)]
    assert 80 < np.median(words) < 125
    assert max(words) <= 100 * LONGEST
    assert min(words) < 50


def test_half_of_the_clients_leave() -> None:
    leaving = [ask("chat,leave=0.5", n).leave_after is not None for n in range(400)]
    assert 150 < sum(leaving) < 250


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("chta", "there are chat"),
        ("chat,wrods=3", "it has words"),
        ("chat,words=x", "number"),
        ("chat,words=0", "0"),
    ],
)
def test_a_workload_that_is_none_is_told_what_there_is(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)


@given(st.floats(0.1, 50), st.integers(1, 7))
def test_processes_share_one_schedule_and_lose_nothing(rate: float, workers: int) -> None:
    whole = list(enumerate(poisson(rate, 20.0, "seed")))
    shares = [list(share(poisson(rate, 20.0, "seed"), worker, workers)) for worker in range(workers)]
    assert sorted(pair for one in shares for pair in one) == whole
    assert all(before <= after for (_, before), (_, after) in pairwise(whole))


def test_arrivals_are_poisson() -> None:
    instants = list(poisson(50.0, 400.0, "seed"))
    gaps = np.diff(instants)
    assert math.isclose(len(instants), 20_000, rel_tol=0.03)
    assert math.isclose(float(gaps.std() / gaps.mean()), 1.0, rel_tol=0.05)
