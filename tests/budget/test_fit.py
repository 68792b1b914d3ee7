"""From messages to a prompt that fits, with templates that add up and templates that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.budget.ask import Ask
from service.budget.fit import MAX_CUTS, fit
from service.budget.history import Message, units, without
from service.budget.limits import Allowance, Limits, in_force
from service.budget.plan import Budget, prompt_room
from service.errors import (
    ContextLengthExceeded,
    FarTooLong,
    InputBudgetExceeded,
    InvalidValue,
    OutputBudgetExceeded,
)
from tests.budget.conversations import MARKER_TOKENS, Additive, Rendered, calls, result, said, well_formed

Conversation = list[dict[str, Any]]


def truncating(window: int, **more: Any) -> Limits:
    return in_force(window, Allowance(input_policy="truncate"), **more)


def long_talk(pairs: int = 60) -> Conversation:
    filler = [said("user", 10), said("assistant", 10)] * pairs
    return [said("system", 8), *filler, said("user", 6)]


# Examples


async def test_a_prompt_that_fits_is_rendered_once_and_left_alone() -> None:
    render = Additive()
    prompt, budget = await fit(long_talk(3), truncating(500), Ask(16), render)
    assert render.rendered == [prompt]
    assert budget.action == "none"


async def test_a_long_prompt_is_refused_where_truncation_is_not_asked_for() -> None:
    with pytest.raises(ContextLengthExceeded):
        await fit(long_talk(), in_force(500, Allowance()), Ask(16), Additive())


async def test_the_system_turn_and_the_newest_question_survive_a_long_talk() -> None:
    messages = long_talk()
    prompt, budget = await fit(messages, truncating(500), Ask(16), Additive())
    assert prompt.messages[0] == messages[0]
    assert prompt.messages[1]["role"] == "user"
    assert prompt.messages[-1] == messages[-1]
    assert budget.action == "truncated"
    assert budget.dropped_messages == len(messages) - len(prompt.messages)
    assert budget.prompt_tokens + budget.max_output_tokens <= 500


async def test_a_cut_that_falls_between_call_and_result_takes_or_leaves_both() -> None:
    messages = [
        said("system", 5),
        said("user", 10),
        calls("c1"),
        result("c1", 150),
        said("assistant", 2),
        said("user", 10),
    ]
    whole = (await Additive()(messages)).prompt_tokens
    for window in range(whole, whole + 40):
        prompt, _ = await fit(messages, truncating(window), Ask(16), Additive())
        assert len(prompt.messages) in (2, 6)


async def test_history_gives_way_before_output_is_clamped() -> None:
    messages = long_talk(2)
    whole = (await Additive()(messages)).prompt_tokens
    _, budget = await fit(messages, truncating(whole + 15), Ask(16), Additive())
    assert (budget.action, budget.dropped_messages, budget.max_output_tokens) == ("truncated", 2, 16)
    assert budget.decided_by == "window"


async def test_the_default_output_is_made_room_for_like_one_that_was_asked_for() -> None:
    messages = long_talk(2)
    whole = (await Additive()(messages)).prompt_tokens
    _, budget = await fit(messages, truncating(whole + 15, default_output_tokens=16), Ask(), Additive())
    assert (budget.action, budget.max_output_tokens) == ("truncated", 16)


async def test_history_does_not_give_way_to_output_that_is_never_granted() -> None:
    messages = long_talk(2)
    whole = (await Additive()(messages)).prompt_tokens
    limits = in_force(whole + 15, Allowance(None, 15, "truncate"))
    _, budget = await fit(messages, limits, Ask(1_000), Additive())
    assert (budget.action, budget.max_output_tokens) == ("clamped", 15)


async def test_output_is_clamped_only_where_no_cut_is_enough() -> None:
    messages = [*long_talk(2)[:-1], said("user", 80)]
    _, budget = await fit(messages, truncating(110), Ask(16), Additive())
    assert budget.action == "truncated+clamped"
    assert budget.dropped_messages == 4
    assert budget.max_output_tokens == 110 - budget.prompt_tokens


async def test_history_gives_way_where_only_the_cache_is_short() -> None:
    messages = long_talk(10)
    _, budget = await fit(messages, truncating(4096, kv_capacity_tokens=600), Ask(100, n=4), Additive())
    assert budget.decided_by == "kv_cache"
    assert budget.prompt_tokens + 4 * 100 <= 600


async def test_a_tenant_s_input_limit_is_what_history_is_cut_to() -> None:
    limits = in_force(4096, Allowance(), Allowance(200, input_policy="truncate"))
    _, budget = await fit(long_talk(), limits, Ask(16), Additive())
    assert budget.decided_by == "tenant"
    assert budget.prompt_tokens <= 200


@pytest.mark.parametrize(
    "messages",
    [
        [said("system", 600), said("user"), said("assistant"), said("user")],
        [said("system"), said("user"), said("assistant"), said("user", 600)],
        [said("system"), said("user"), calls("a"), result("a", 600)],
        [said("assistant", 600)],
    ],
    ids=["system", "newest user turn", "results of a running call", "no user turn"],
)
async def test_what_may_not_be_left_out_and_does_not_fit_is_refused(messages: Conversation) -> None:
    with pytest.raises(ContextLengthExceeded, match="512") as refused:
        await fit(messages, truncating(512), Ask(16), Additive())
    assert refused.value.param == "messages"


async def test_a_refusal_by_an_operator_s_limit_is_told_apart_after_a_cut() -> None:
    limits = in_force(4096, Allowance(20, input_policy="truncate"))
    with pytest.raises(InputBudgetExceeded, match="even with the oldest messages left out, 120 of"):
        await fit([*long_talk()[:-1], said("user", 30)], limits, Ask(16), Additive())


async def test_output_over_an_operator_s_limit_is_refused_however_history_is_cut() -> None:
    limits = in_force(500, Allowance(None, 15, "truncate", "reject"))
    with pytest.raises(OutputBudgetExceeded):
        await fit(long_talk(), limits, Ask(16), Additive())


async def test_a_template_that_moves_tokens_to_the_first_turn_that_is_left_costs_one_more_rendering() -> None:
    render = Additive(shortfall=40)
    _, budget = await fit(long_talk(), truncating(500), Ask(16), render)
    assert budget.prompt_tokens + 16 <= 500
    assert len(render.rendered) == 3


async def test_a_template_that_never_shrinks_is_rendered_only_so_often() -> None:
    rendered: list[int] = []

    async def render(messages: Sequence[Message]) -> Rendered:
        rendered.append(len(messages))
        return Rendered(
            list(messages), [0] * 500, 0, [(9, 1)] * len(messages)
        )  # one unit too many, every time

    with pytest.raises(ContextLengthExceeded):
        await fit(long_talk(), truncating(500), Ask(16), render)
    assert len(rendered) == 1 + MAX_CUTS == 5
    assert rendered == sorted(rendered, reverse=True)
    assert rendered[-1] == 2


class Measured(Additive):
    """The same, refusing by mere length: each token of a message is five characters, each marker thirty."""

    asked = 0

    async def __call__(self, messages: Sequence[Message]) -> Rendered:
        self.asked += 1
        characters = sum(len(message["content"] or "") + 30 * MARKER_TOKENS for message in messages)
        if characters > 40 * 500:
            raise FarTooLong(characters // 40, characters, 40 * 500)
        return await super().__call__(messages)


@pytest.mark.parametrize("tokens", [0, 1, 10, 400])
async def test_a_talk_of_thousands_of_turns_is_cut_in_a_few_renderings(tokens: int) -> None:
    messages = [
        said("system", 8),
        *[said("user", tokens), said("assistant", tokens)] * 2_500,
        said("user", 6),
    ]
    render = Measured()
    prompt, budget = await fit(messages, truncating(500), Ask(16), render)
    assert render.asked <= 6
    _, expected = await fit(messages, truncating(500), Ask(16), Additive())
    assert budget == expected and len(prompt.messages) == len(messages) - expected.dropped_messages


async def test_a_template_that_is_far_too_long_whatever_is_left_out_is_rendered_only_so_often() -> None:
    rendered: list[int] = []

    async def render(messages: Sequence[Message]) -> Rendered:
        rendered.append(len(messages))
        raise FarTooLong(600, 20_001, 20_000)

    with pytest.raises(ContextLengthExceeded):
        await fit(long_talk(), truncating(500), Ask(16), render)
    assert len(rendered) == 1 + MAX_CUTS and rendered[-1] == 2


# Properties


async def attempt(
    messages: Conversation, limits: Limits, ask: Ask, render: Additive
) -> tuple[Rendered, Budget] | None:
    try:
        return await fit(messages, limits, ask, render)
    except InvalidValue:
        return None


asks = st.builds(Ask, st.none() | st.integers(1, 60), st.integers(1, 3))
windows = st.integers(2, 400)


@given(well_formed(), windows, asks)
async def test_as_little_as_possible_is_left_out(messages: Conversation, window: int, ask: Ask) -> None:
    limits = truncating(window)
    fitted = await attempt(messages, limits, ask, Additive())
    if fitted is None or not fitted[1].dropped_messages:
        return
    may_go = units(messages)
    gone = [
        dropped
        for dropped in range(len(may_go) + 1)
        if without(messages, may_go[:dropped]) == fitted[0].messages
    ]
    one_less = await Additive()(without(messages, may_go[: gone[0] - 1]))
    assert one_less.prompt_tokens > prompt_room(limits, ask).tokens


@given(well_formed(), windows, asks, st.integers(-5, 60))
async def test_whatever_the_template_does_it_ends_soon_and_inside_the_window(
    messages: Conversation, window: int, ask: Ask, shortfall: int
) -> None:
    render = Additive(shortfall)
    fitted = await attempt(messages, truncating(window), ask, render)
    assert len(render.rendered) <= 1 + MAX_CUTS
    if fitted is not None:
        prompt, budget = fitted
        assert prompt is render.rendered[-1]
        assert budget.prompt_tokens == prompt.prompt_tokens
        assert budget.prompt_tokens + budget.max_output_tokens <= window
        assert budget.dropped_messages == len(messages) - len(prompt.messages)
        assert ("truncated" in budget.action) is (budget.dropped_messages > 0)


@given(well_formed(), windows, asks)
async def test_output_is_clamped_only_after_everything_that_may_go_has_gone(
    messages: Conversation, window: int, ask: Ask
) -> None:
    fitted = await attempt(messages, truncating(window), ask, Additive())
    if fitted is not None and fitted[1].clamped_from is not None:
        assert fitted[1].dropped_messages == sum(len(unit) for unit in units(messages))


@given(well_formed(), windows, asks, st.integers(1, 100))
async def test_a_larger_window_never_refuses_more(
    messages: Conversation, window: int, ask: Ask, more: int
) -> None:
    if await attempt(messages, truncating(window), ask, Additive()):
        assert await attempt(messages, truncating(window + more), ask, Additive())


@given(well_formed(), windows, asks)
async def test_truncation_refuses_nothing_that_was_accepted_without(
    messages: Conversation, window: int, ask: Ask
) -> None:
    if await attempt(messages, in_force(window, Allowance()), ask, Additive()):
        assert await attempt(messages, truncating(window), ask, Additive())
