"""Which limits hold, and whose they are."""

from __future__ import annotations

import pytest

from service.budget.limits import Allowance, InputPolicy, Limit, Truncation, in_force


def test_without_any_limit_the_window_is_the_limit_less_one_token_for_the_answer() -> None:
    limits = in_force(4096, Allowance())
    assert limits.input == Limit(4095, "window")
    assert limits.output == Limit(4095, "window")


def test_the_tightest_limit_counts_and_its_owner_is_known() -> None:
    limits = in_force(4096, Allowance(3000, 500), Allowance(2000, 800))
    assert limits.input == Limit(2000, "tenant")
    assert limits.output == Limit(500, "service")


def test_limits_beyond_the_window_change_nothing() -> None:
    assert in_force(4096, Allowance(9000, 9000)) == in_force(4096, Allowance())


def test_of_equal_limits_the_window_is_named() -> None:
    assert in_force(4096, Allowance(4095), Allowance(4095)).input.source == "window"


def test_unless_told_otherwise_long_prompts_are_refused_and_long_outputs_clamped() -> None:
    limits = in_force(4096, Allowance())
    assert not limits.truncates
    assert limits.clamps


@pytest.mark.parametrize(
    ("service", "tenant", "truncation", "truncates"),
    [
        ("truncate", None, None, True),
        ("truncate", "reject", None, False),
        ("reject", "truncate", None, True),
        ("reject", "reject", "auto", True),
        ("truncate", "truncate", "disabled", False),
        (None, None, "auto", True),
    ],
)
def test_a_tenant_goes_before_the_service_and_a_request_before_both(
    service: InputPolicy | None, tenant: InputPolicy | None, truncation: Truncation | None, truncates: bool
) -> None:
    allowances = Allowance(input_policy=service), Allowance(input_policy=tenant)
    assert in_force(4096, *allowances, truncation=truncation).truncates is truncates


def test_a_tenant_s_output_policy_goes_before_the_service_s() -> None:
    assert in_force(4096, Allowance(output_policy="reject"), Allowance(output_policy="clamp")).clamps
    assert not in_force(4096, Allowance(output_policy="clamp"), Allowance(output_policy="reject")).clamps


def test_a_default_output_is_never_above_what_its_owners_allow() -> None:
    assert (
        in_force(4096, Allowance(), Allowance(None, 100), default_output_tokens=512).default_output_tokens
        == 100
    )
    assert in_force(4096, Allowance(None, 600), default_output_tokens=512).default_output_tokens == 512
    assert in_force(4096, Allowance(None, 600)).default_output_tokens is None
