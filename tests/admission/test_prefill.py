"""How long prompts take to be read: what is learned from first tokens of made-up machines."""

from __future__ import annotations

import math
import random

import pytest

from service.admission.prefill import Prefill

BASE_S, TOKEN_S = 0.03, 0.0004


def seconds(read: float, cached: float, horizon: float) -> float:
    """Of a machine on which looking back at `horizon` tokens costs as much as reading one."""
    return BASE_S + TOKEN_S * (read + read * (cached + read / 2) / horizon)


def taught(horizon: float, samples: int = 60, noise: float = 0.05) -> Prefill:
    """After conversations that grow to a few thousand tokens."""
    chance, made, cached = random.Random(1), Prefill(), 0
    for _ in range(samples):
        read = chance.choice((20, 90, 300, 1100, 2800))
        took = seconds(read, cached, horizon) * math.exp(chance.gauss(0, noise))
        made.add(took, 0.0, read, cached, 1)
        cached = 0 if cached > 5000 else cached + read
    return made


@pytest.mark.parametrize("horizon", [math.inf, 3000, 1000])
@pytest.mark.parametrize(
    ("read", "cached"), [(20, 0), (20, 5000), (300, 0), (300, 4000), (2800, 0), (2800, 2000)]
)
def test_short_and_long_prompts_are_foreseen_alike(horizon: float, read: int, cached: int) -> None:
    made = taught(horizon)
    assert made.at(made.work(read, cached), 1) == pytest.approx(seconds(read, cached, horizon), rel=0.25)


def test_nothing_is_known_before_a_first_token() -> None:
    assert not Prefill().known
    assert Prefill().work(100, 1000) == 100


def test_a_machine_that_becomes_slower_is_followed() -> None:
    made = taught(math.inf)
    for _ in range(100):
        made.add(3 * seconds(300, 0, math.inf), 0.0, 300, 0, 1)
    assert made.at(made.work(300, 0), 1) == pytest.approx(3 * seconds(300, 0, math.inf), rel=0.1)


def test_one_stall_does_not_change_what_looking_back_costs() -> None:
    made = taught(math.inf)
    made.add(60.0, 0.0, 2800, 0, 1)
    assert made.work(1000, 4000) == pytest.approx(1000, rel=0.4)
