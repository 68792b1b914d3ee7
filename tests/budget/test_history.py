"""What may be left out of a conversation, and how little of it is."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.budget.history import INSTRUCTIONS, Message, choose_cut, units, without
from tests.budget.conversations import anything, calls, result, said, well_formed

Conversation = list[dict[str, Any]]


def roles(messages: list[Message]) -> list[str]:
    return [message["role"] for message in messages]


def last_user(messages: Conversation) -> int:
    return max((index for index, message in enumerate(messages) if message["role"] == "user"), default=0)


def dialogue(turns: int) -> Conversation:
    return [said("system"), *(said("assistant" if turn % 2 else "user") for turn in range(turns))]


# Examples


def test_an_exchange_is_a_unit_and_the_newest_one_is_none() -> None:
    assert units(dialogue(5)) == [range(1, 3), range(3, 5)]


def test_a_call_and_its_results_go_together() -> None:
    messages = [
        said("system"),
        said("user"),
        calls("a", "b"),
        result("b"),
        result("a"),
        said("assistant"),
        said("user"),
    ]
    assert units(messages) == [range(1, 6)]
    assert roles(without(messages, units(messages))) == ["system", "user"]


def test_all_that_follows_the_newest_user_turn_stays() -> None:
    messages = [
        said("user"),
        said("assistant"),
        said("user"),
        calls("a"),
        result("a"),
        calls("b"),
        result("b"),
    ]
    assert units(messages) == [range(0, 2)]


def test_a_user_who_speaks_before_the_result_is_in_begins_no_unit() -> None:
    messages = [
        said("user"),
        said("assistant"),
        said("user"),
        calls("a"),
        said("user"),
        result("a"),
        said("user"),
    ]
    assert units(messages) == [range(0, 2), range(2, 6)]
    assert units(messages[:-1]) == [range(0, 2)]


def test_calls_whose_results_come_in_another_order_overlap_into_one_unit() -> None:
    messages = [
        said("user"),
        calls("slow"),
        said("user"),
        calls("quick"),
        result("quick"),
        said("user"),
        result("slow"),
        said("user"),
    ]
    assert units(messages) == [range(0, 7)]


def test_an_id_used_again_belongs_to_the_later_call() -> None:
    exchange = [said("user"), calls("call_0"), result("call_0"), said("assistant")]
    assert units(exchange * 3) == [range(0, 4), range(4, 8)]


def test_a_greeting_before_any_question_goes_first() -> None:
    messages = [said("system"), said("assistant"), said("user"), said("assistant"), said("user")]
    assert units(messages) == [range(1, 2), range(2, 4)]


def test_two_user_turns_in_a_row_are_two_turns() -> None:
    assert units([said("user"), said("user"), said("user")]) == [range(0, 1), range(1, 2)]


def test_leading_instructions_of_both_names_stay() -> None:
    messages = [said("system"), said("developer"), said("user"), said("assistant"), said("user")]
    assert roles(without(messages, units(messages))) == ["system", "developer", "user"]


def test_a_system_message_in_the_middle_ages_with_its_unit() -> None:
    messages = [said("system"), said("user"), said("assistant"), said("system"), said("user"), said("user")]
    assert units(messages) == [range(1, 4), range(4, 5)]


def test_a_result_without_a_call_ages_where_it_stands() -> None:
    messages = [result("x"), said("user"), result("y"), said("assistant"), said("user")]
    assert units(messages) == [range(0, 1), range(1, 4)]


def test_without_a_user_turn_nothing_may_go() -> None:
    assert units([]) == []
    assert units([said("system"), said("assistant"), said("assistant")]) == []


def test_a_cut_is_the_smallest_that_is_enough() -> None:
    assert choose_cut([10, 20, 30], 5, 65) == 0
    assert choose_cut([10, 20, 30], 5, 64) == 1
    assert choose_cut([10, 20, 30], 5, 35) == 2
    assert choose_cut([10, 20, 30], 5, 5) == 3
    assert choose_cut([10, 20, 30], 5, -1) == 3
    assert choose_cut([], 5, 4) == 0


def test_two_thousand_turns_are_cut_within_five_milliseconds() -> None:
    messages = dialogue(2_000)

    def seconds() -> float:
        started = perf_counter()
        may_go = units(messages)
        without(messages, may_go[: choose_cut([50] * len(may_go), 100, 1_000)])
        return perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.005


# Properties


@given(st.one_of(well_formed(), anything), st.data())
def test_what_remains_is_instructions_then_a_user_turn_and_everything_after_it(
    messages: Conversation, data: st.DataObject
) -> None:
    may_go = units(messages)
    kept = without(messages, may_go[: data.draw(st.integers(0, len(may_go)))])
    if len(kept) == len(messages):
        assert kept == messages
        return
    head = next(index for index, message in enumerate(messages) if message["role"] not in INSTRUCTIONS)
    rest = kept[head:]
    assert kept[:head] == messages[:head]
    assert rest == messages[len(messages) - len(rest) :]
    assert rest[0]["role"] == "user"
    assert len(rest) >= len(messages) - last_user(messages)


@given(st.one_of(well_formed(), anything), st.data())
def test_no_cut_parts_a_call_from_its_results(messages: Conversation, data: st.DataObject) -> None:
    may_go = units(messages)
    kept = without(range_marked(messages), may_go[: data.draw(st.integers(0, len(may_go)))])
    places = {message["place"] for message in kept}
    for caller, answers in brute_force_results(messages).items():
        assert len({caller, *answers} & places) in (0, 1 + len(answers))


@given(st.one_of(well_formed(), anything), st.data())
def test_no_two_turns_of_one_role_meet_that_were_apart(messages: Conversation, data: st.DataObject) -> None:
    may_go = units(messages)
    kept = without(range_marked(messages), may_go[: data.draw(st.integers(0, len(may_go)))])
    for before, after in pairwise(kept):
        assert before["role"] != after["role"] or after["place"] == before["place"] + 1


@given(st.one_of(well_formed(), anything))
def test_units_are_as_small_as_the_rules_allow(messages: Conversation) -> None:
    results = brute_force_results(messages)
    allowed = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user"
        and not any(caller < place <= max(answers) for caller, answers in results.items() if answers)
    ]
    head = next((place for place, message in enumerate(messages) if message["role"] not in INSTRUCTIONS), 0)
    greeting = bool(allowed) and allowed[0] > head
    assert [unit.stop for unit in units(messages)] == allowed[0 if greeting else 1 :]


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 100), st.integers(-10, 600))
def test_no_smaller_cut_would_have_been_enough(tokens: list[int], fixed: int, room: int) -> None:
    dropped = choose_cut(tokens, fixed, room)
    assert fixed + sum(tokens[dropped:]) <= room or dropped == len(tokens)
    assert all(fixed + sum(tokens[fewer:]) > room for fewer in range(dropped))


def range_marked(messages: Conversation) -> Conversation:
    return [{**message, "place": place} for place, message in enumerate(messages)]


def brute_force_results(messages: Conversation) -> dict[int, list[int]]:
    """For each turn with calls the places of its results, found by looking back from each result."""
    results: dict[int, list[int]] = {
        place: [] for place, message in enumerate(messages) if message.get("tool_calls")
    }
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            continue
        for caller in sorted((earlier for earlier in results if earlier < place), reverse=True):
            if message["tool_call_id"] in {call["id"] for call in messages[caller]["tool_calls"]}:
                results[caller].append(place)
                break
    return results
