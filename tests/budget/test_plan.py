"""The decision over plain numbers: what fits, what is shortened, what is refused and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.budget.ask import Ask
from service.budget.limits import Allowance, InputPolicy, Limits, OutputPolicy, in_force
from service.budget.plan import Budget, plan, prompt_room, wanted
from service.errors import (
    ContextLengthExceeded,
    InputBudgetExceeded,
    InvalidValue,
    OutputBudgetExceeded,
)

W = 4096
OVERFLOW = "This model's maximum context length is"
TOO_LONG = "prompt is too long"


def decide(prompt_tokens: int, ask: Ask | None = None, limits: Limits | None = None) -> Budget:
    limits = limits or in_force(W, Allowance())
    return plan(limits, ask or Ask(), prompt_tokens=prompt_tokens, template_tokens=min(38, prompt_tokens))


def rejecting(*, output: int | None = None, tenant: int | None = None) -> Limits:
    return in_force(W, Allowance(None, output, output_policy="reject"), Allowance(None, tenant))


# Examples


def test_a_thousand_content_tokens_and_their_template_fit_with_two_hundred_of_output() -> None:
    budget = decide(1_000 + 38, Ask(200))
    assert (budget.content_tokens, budget.template_tokens, budget.prompt_tokens) == (1_000, 38, 1_038)
    assert budget.prompt_tokens + budget.max_output_tokens == 1_238 <= budget.context_window
    assert budget.action == "none"


def test_3950_tokens_and_two_hundred_of_output_do_not_fit_4096() -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        decide(3_950, Ask(200), rejecting())
    assert all(number in refused.value.message for number in ("4096", "3950", "200", "4150", "146"))
    assert decide(3_950, Ask(200)).clamped_from == 200
    assert decide(3_950, Ask(200)).max_output_tokens == 146


def test_a_prompt_that_leaves_exactly_the_output_asked_for_fits() -> None:
    assert decide(W - 16, Ask(16), rejecting()).max_output_tokens == 16


def test_one_token_more_is_refused_or_clamped_as_the_policy_says() -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        decide(W - 15, Ask(16), rejecting())
    assert refused.value.param == "messages"
    assert OVERFLOW in refused.value.message and TOO_LONG in refused.value.message
    assert all(str(number) in refused.value.message for number in (W, W - 15, 16))
    budget = decide(W - 15, Ask(16))
    assert (budget.action, budget.max_output_tokens, budget.decided_by) == ("clamped", 15, "window")


@pytest.mark.parametrize("prompt_tokens", [W, W + 1, 10 * W])
def test_a_prompt_that_leaves_no_token_for_the_answer_is_a_context_overflow(prompt_tokens: int) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        decide(prompt_tokens, Ask(1))
    assert refused.value.param == "messages"
    assert refused.value.message.startswith(f"{OVERFLOW} {W} tokens")
    assert f"{prompt_tokens} tokens and the output asked for is 1" in refused.value.message


def test_a_prompt_of_all_but_one_token_gets_an_answer_of_one() -> None:
    assert decide(W - 1).max_output_tokens == 1
    assert decide(W - 1, Ask(16)).max_output_tokens == 1


def test_what_is_left_is_the_output_of_callers_who_name_none() -> None:
    budget = decide(1_000)
    assert budget.max_output_tokens == W - 1_000
    assert budget.action == "none"


def test_an_output_asked_for_goes_before_the_default() -> None:
    limits = in_force(W, Allowance(), default_output_tokens=32)
    assert decide(100, Ask(64), limits).max_output_tokens == 64
    assert decide(100, Ask(64), limits).action == "none"
    assert decide(100, Ask(), limits).max_output_tokens == 32


def test_a_default_that_does_not_fit_is_treated_as_if_asked_for() -> None:
    limits = in_force(W, Allowance(), default_output_tokens=512)
    assert decide(W - 100, Ask(), limits).clamped_from == 512
    with pytest.raises(ContextLengthExceeded, match="the default output is 512"):
        decide(W - 100, Ask(), replace(limits, clamps=False))


def test_a_default_above_a_tenant_s_limit_is_no_clamp_and_no_refusal() -> None:
    limits = in_force(W, Allowance(output_policy="reject"), Allowance(None, 100), default_output_tokens=512)
    budget = decide(1_000, Ask(), limits)
    assert (budget.max_output_tokens, budget.action) == (100, "none")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_output_over_an_operator_s_limit_is_refused_by_the_caller_s_own_field(field: str) -> None:
    with pytest.raises(OutputBudgetExceeded) as refused:
        decide(1_000, Ask(200, field=field), rejecting(output=150))
    assert refused.value.param == field
    assert OVERFLOW not in refused.value.message
    assert all(number in refused.value.message for number in ("4096", "1000", "200", "150", "This service"))


def test_an_output_over_an_operator_s_limit_is_clamped_and_told() -> None:
    budget = decide(1_000, Ask(200), in_force(W, Allowance(None, 150)))
    assert (budget.max_output_tokens, budget.clamped_from, budget.decided_by) == (150, 200, "service")


def test_a_prompt_over_an_operator_s_limit_has_a_code_of_its_own() -> None:
    with pytest.raises(InputBudgetExceeded) as refused:
        decide(3_000, Ask(200), in_force(W, Allowance(), Allowance(2_000)))
    assert refused.value.param == "messages"
    assert OVERFLOW not in refused.value.message
    assert all(number in refused.value.message for number in ("4096", "3000", "200", "2000", "Your API key"))


def test_of_two_limits_that_are_passed_the_tighter_one_decides() -> None:
    with pytest.raises(InputBudgetExceeded):
        decide(2 * W, Ask(1), in_force(W, Allowance(2_000)))
    with pytest.raises(ContextLengthExceeded):
        decide(W - 15, Ask(200), rejecting(output=150))


@pytest.mark.parametrize("max_tokens", [0, -1])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_no_output_can_be_asked_for_only_by_mistake(max_tokens: int, field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Ask(max_tokens, field=field)
    assert refused.value.param == field


def test_what_the_engine_could_never_hold_is_refused_at_once() -> None:
    limits = in_force(W, Allowance(), kv_capacity_tokens=5_000)
    assert decide(1_000, Ask(1_000, n=4), limits).max_output_tokens == 1_000
    with pytest.raises(OutputBudgetExceeded) as refused:
        decide(1_001, Ask(1_000, n=4), limits)
    assert refused.value.param == "n"
    assert all(number in refused.value.message for number in ("5000", "1001", "4 x 1000", "5001", "4096"))


def test_the_cache_bounds_what_is_left_but_shortens_no_output_that_was_named() -> None:
    limits = in_force(W, Allowance(), kv_capacity_tokens=5_000)
    budget = decide(1_000, Ask(n=8), limits)
    assert (budget.max_output_tokens, budget.action) == (500, "none")
    with pytest.raises(OutputBudgetExceeded):
        decide(1_000, Ask(501, n=8), limits)


def test_a_cache_that_holds_the_prompt_but_not_a_token_for_each_answer_is_too_small() -> None:
    limits = in_force(W, Allowance(), kv_capacity_tokens=1_000)
    assert decide(998, Ask(n=2), limits).max_output_tokens == 1
    with pytest.raises(OutputBudgetExceeded):
        decide(999, Ask(n=2), limits)


def test_a_refusal_after_a_cut_says_what_was_left_out() -> None:
    with pytest.raises(
        ContextLengthExceeded, match="5000 tokens even with the oldest messages left out, 6 of"
    ):
        plan(in_force(W, Allowance()), Ask(), prompt_tokens=5_000, template_tokens=0, dropped_messages=6)


def test_the_report_holds_the_fields_of_the_contract_and_the_headers_agree() -> None:
    limits = in_force(W, Allowance(None, 150, "truncate"))
    budget = plan(limits, Ask(200), prompt_tokens=1_038, template_tokens=38, dropped_messages=4)
    assert budget.report() == {
        "context_window": 4_096,
        "input_limit": 4_095,
        "output_limit": 150,
        "prompt_tokens": 1_038,
        "template_tokens": 38,
        "content_tokens": 1_000,
        "max_output_tokens": 150,
        "action": "truncated+clamped",
        "dropped_messages": 4,
        "clamped_from": 200,
    }
    assert budget.headers() == {
        "x-budget-action": "truncated+clamped",
        "x-budget-dropped-messages": "4",
        "x-budget-max-output-tokens": "150",
    }


# Properties

counts = st.integers(1, 120)
maybe = st.none() | counts
windows = st.integers(2, 400)
input_policies: st.SearchStrategy[InputPolicy | None] = st.sampled_from([None, "reject", "truncate"])
output_policies: st.SearchStrategy[OutputPolicy | None] = st.sampled_from([None, "reject", "clamp"])
allowances = st.builds(Allowance, maybe, maybe, input_policies, output_policies)
asks = st.builds(Ask, maybe, st.integers(1, 4))
capacities = st.just(0) | st.integers(1, 1_000)


@st.composite
def limits_of_all_kinds(draw: st.DrawFn) -> Limits:
    return in_force(
        draw(windows),
        draw(allowances),
        draw(st.none() | allowances),
        truncation=draw(st.sampled_from([None, "auto", "disabled"])),
        default_output_tokens=draw(maybe),
        kv_capacity_tokens=draw(capacities),
    )


def accepted(limits: Limits, ask: Ask, prompt_tokens: int) -> Budget | None:
    try:
        return decide(prompt_tokens, ask, limits)
    except InvalidValue:
        return None


@given(limits_of_all_kinds(), asks, counts)
def test_a_budget_is_inside_every_limit_and_never_below_one_token(
    limits: Limits, ask: Ask, prompt_tokens: int
) -> None:
    budget = accepted(limits, ask, prompt_tokens)
    if budget is None:
        return
    assert 1 <= budget.max_output_tokens <= budget.output_limit <= limits.output.tokens
    assert budget.prompt_tokens <= budget.input_limit < limits.context_window
    assert budget.prompt_tokens + budget.max_output_tokens <= limits.context_window
    assert budget.content_tokens + budget.template_tokens == budget.prompt_tokens
    needed = budget.prompt_tokens + ask.n * budget.max_output_tokens
    assert needed <= limits.kv_capacity_tokens or limits.kv_capacity_tokens == 0


@given(limits_of_all_kinds(), asks, counts)
def test_a_clamp_is_told_exactly_when_less_is_granted_than_was_asked_for(
    limits: Limits, ask: Ask, prompt_tokens: int
) -> None:
    budget = accepted(limits, ask, prompt_tokens)
    if budget is None:
        return
    asked = wanted(limits, ask)
    clamped = asked is not None and asked > budget.max_output_tokens
    assert budget.clamped_from == (asked if clamped else None)
    assert budget.action == ("clamped" if clamped else "none")
    assert (budget.decided_by is not None) is clamped
    assert limits.clamps or not clamped


@given(limits_of_all_kinds(), asks, counts)
def test_only_what_does_not_fit_is_refused(limits: Limits, ask: Ask, prompt_tokens: int) -> None:
    fits = prompt_tokens <= prompt_room(limits, ask).tokens
    if fits and (limits.clamps or (wanted(limits, ask) or 1) <= limits.output.tokens):
        assert accepted(limits, ask, prompt_tokens) is not None


@given(limits_of_all_kinds(), asks, counts)
def test_every_refusal_names_window_prompt_and_output(limits: Limits, ask: Ask, prompt_tokens: int) -> None:
    try:
        decide(prompt_tokens, ask, limits)
    except InvalidValue as refused:
        assert str(limits.context_window) in refused.message
        assert str(prompt_tokens) in refused.message
        assert str(wanted(limits, ask) or "no output length") in refused.message
        for words in (OVERFLOW, TOO_LONG):
            assert (words in refused.message) is (refused.code == "context_length_exceeded")
        assert len(refused.message) < 400


@given(windows, allowances, allowances, asks, counts, counts)
def test_a_larger_operator_limit_never_refuses_more(
    window: int, service: Allowance, tenant: Allowance, ask: Ask, prompt_tokens: int, more: int
) -> None:
    if not accepted(in_force(window, service, tenant), ask, prompt_tokens):
        return
    wider_input = replace(tenant, max_input_tokens=tenant.max_input_tokens and tenant.max_input_tokens + more)
    wider_output = replace(
        tenant, max_output_tokens=tenant.max_output_tokens and tenant.max_output_tokens + more
    )
    assert accepted(in_force(window, service, wider_input), ask, prompt_tokens)
    assert accepted(in_force(window, service, wider_output), ask, prompt_tokens)


@given(limits_of_all_kinds(), asks, counts, counts)
def test_a_larger_cache_never_refuses_more(limits: Limits, ask: Ask, prompt_tokens: int, more: int) -> None:
    if not (limits.kv_capacity_tokens and accepted(limits, ask, prompt_tokens)):
        return
    wider = replace(limits, kv_capacity_tokens=limits.kv_capacity_tokens + more)
    assert accepted(wider, ask, prompt_tokens)


@given(windows, allowances, asks, maybe, counts, counts)
def test_a_larger_window_never_refuses_more(
    window: int, service: Allowance, ask: Ask, default: int | None, prompt_tokens: int, more: int
) -> None:
    if accepted(in_force(window, service, default_output_tokens=default), ask, prompt_tokens):
        assert accepted(in_force(window + more, service, default_output_tokens=default), ask, prompt_tokens)
