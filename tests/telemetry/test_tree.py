from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from service.errors import (
    Draining,
    EngineUnavailable,
    InputBudgetExceeded,
    InvalidJson,
    Overloaded,
)
from service.prompt.difference import Miss
from service.telemetry.outcome import outcome
from service.telemetry.phases import derive
from service.telemetry.record import RequestRecord
from service.telemetry.timeline import timeline
from service.telemetry.tree import Node, tree
from tests.telemetry.records import START_S, abandoned, answered, choice, record, refused, waiting_choice


def tree_of(made: RequestRecord) -> Node:
    times = timeline(made, time.monotonic())
    return tree(made, times, derive(made, times), outcome(made))


def outline(node: Node) -> list[object]:
    """Names only, children in a list after their parent."""
    inner = [item for child in node.children for item in outline(child)]
    return [node.name, inner] if inner else [node.name]


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from walk(child)


def named(root: Node, name: str) -> Node:
    return next(node for node in walk(root) if node.name == name)


def marked(root: Node) -> list[str]:
    return [node.name for node in walk(root) if "twophase.outcome" in node.attributes][1:]


def failed(root: Node) -> list[str]:
    return [node.name for node in walk(root) if node.error is not None]


POST = "POST /v1/chat/completions"
ALL = ["render", "admission", "queue", "prefill", "decode"]


def test_an_answer_is_one_request_one_chat_and_five_phases() -> None:
    assert outline(tree_of(answered())) == [POST, ["chat tiny", ALL]]


def test_phases_touch_and_lie_inside_their_parent() -> None:
    root = tree_of(answered())
    (chat,) = root.children
    assert root.start_s <= chat.start_s and chat.end_s <= root.end_s
    assert chat.children[0].start_s == chat.start_s
    for before, after in zip(chat.children, chat.children[1:], strict=False):
        assert before.end_s == after.start_s
    assert all(node.start_s <= node.end_s for node in walk(root))
    assert chat.children[-1].end_s <= chat.end_s


def test_spans_and_phases_tell_the_same_times() -> None:
    made = answered()
    found = derive(made, timeline(made, time.monotonic()))
    lengths = {node.name: 1e3 * (node.end_s - node.start_s) for node in walk(tree_of(made))}
    assert {name: lengths[name] for name in ALL} == pytest.approx(found.named())
    assert lengths[POST] == pytest.approx(found.total_ms)


def test_several_answers_have_a_level_of_their_own() -> None:
    inner = ["queue", "prefill", "decode"]
    assert outline(tree_of(answered(choice(), choice()))) == [
        POST,
        ["chat tiny", ["render", "admission", "choice 0", inner, "choice 1", inner]],
    ]


def test_a_body_that_cannot_be_read_has_no_chat() -> None:
    root = tree_of(refused(InvalidJson("no"), parsed=None))
    assert outline(root) == [POST]
    assert (root.attributes["error.type"], root.error) == ("invalid_json", None)


def test_a_budget_refusal_ends_in_render_and_is_no_error_of_ours() -> None:
    root = tree_of(refused(InputBudgetExceeded("no", param="messages", limit="service")))
    assert outline(root) == [POST, ["chat tiny", ["render"]]]
    assert (marked(root), failed(root)) == (["chat tiny", "render"], [])
    assert named(root, "render").attributes["error.type"] == "input_budget_exceeded"


def test_an_overloaded_service_fails_in_admission() -> None:
    root = tree_of(refused(Overloaded("no"), at=1.0, rendered=0.01))
    assert outline(root) == [POST, ["chat tiny", ["render", "admission"]]]
    assert failed(root) == [POST, "chat tiny", "admission"]
    assert named(root, "admission").end_s == START_S + 1.0


def test_a_request_abandoned_before_its_first_token_has_one_span_for_what_nobody_saw() -> None:
    root = tree_of(abandoned(waiting_choice()))
    assert outline(root) == [POST, ["chat tiny", ["render", "admission", "queue_or_prefill"]]]
    assert failed(root) == []
    assert named(root, "queue_or_prefill").attributes == {"twophase.outcome": "client_abort"}
    assert "error.type" not in root.attributes


def test_an_answer_abandoned_on_the_way_ends_in_decode() -> None:
    root = tree_of(abandoned(choice(last=1.5, finish=None), at=2.0))
    assert outline(root) == [POST, ["chat tiny", ALL]]
    assert named(root, "decode").end_s == START_S + 2.0
    assert marked(root) == ["chat tiny", "decode"]


def test_a_client_that_leaves_when_all_is_made_marks_no_phase() -> None:
    assert marked(tree_of(answered(last_byte=None, client_left=True))) == ["chat tiny"]


def test_an_engine_that_dies_fails_the_phase_it_died_in() -> None:
    error = EngineUnavailable("gone")
    root = tree_of(record(choice(finish=None), error=error, first_content=1.1, last_byte=9, closed=9))
    assert failed(root) == [POST, "chat tiny", "decode"]
    assert named(root, "decode").attributes["error.type"] == "engine_unavailable"


def test_an_engine_that_dies_on_the_way_to_it_leaves_no_choice_to_speak_of() -> None:
    root = tree_of(record(submitted=None, error=EngineUnavailable("gone"), last_byte=1, closed=1))
    assert outline(root) == [POST, ["chat tiny", ["render", "admission", "queue_or_prefill"]]]


def test_only_the_answers_that_had_not_ended_are_marked() -> None:
    done, cut, waiting = choice(last=1.5), choice(finish=None), waiting_choice()
    root = tree_of(
        record(done, cut, waiting, error=Draining("bye"), first_content=1.1, last_byte=5, closed=5)
    )
    ends = [one.children[-1] for one in root.children[0].children[2:]]
    assert [(one.name, one.error) for one in ends] == [
        ("decode", None),
        ("decode", "draining"),
        ("queue_or_prefill", "draining"),
    ]


def test_without_the_engines_clock_waiting_and_prefill_are_one_span() -> None:
    root = tree_of(answered(choice(clock=False)))
    assert outline(root)[1] == ["chat tiny", ["render", "admission", "queue_or_prefill", "decode"]]


def test_preemptions_are_events_where_they_were_noticed() -> None:
    made = choice(preempted=(1.001, 2.0, 3.0))
    root = tree_of(answered(made))
    assert named(root, "prefill").preempted_s == [START_S + 1.001]
    assert named(root, "decode").preempted_s == [START_S + 2.0, START_S + 3.0]
    assert named(root, "decode").attributes["twophase.preemptions"] == 3


def test_gen_ai_attributes_live_on_the_chat_span_only() -> None:
    root = tree_of(answered(choice(cached=64)))
    (chat,) = root.children
    assert {
        node.name for node in walk(root) if any(key.startswith("gen_ai.") for key in node.attributes)
    } == {"chat tiny"}
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": pytest.approx(1.002),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 31,
        "gen_ai.usage.cache_read.input_tokens": 64,
    }


def test_the_request_span_says_what_http_saw_and_how_it_ended() -> None:
    attributes = tree_of(answered()).attributes
    assert attributes["http.request.method"] == "POST"
    assert attributes["http.route"] == "/v1/chat/completions"
    assert attributes["http.response.status_code"] == 200
    assert attributes["twophase.outcome"] == "ok"
    assert attributes["twophase.bound_by"] == "decode"
    assert attributes["twophase.ttft_ms"] == pytest.approx(1002)


def test_prefill_and_decode_carry_their_tokens() -> None:
    root = tree_of(answered(choice(cached=64)))
    assert named(root, "prefill").attributes == {"twophase.computed_tokens": 36, "twophase.cached_tokens": 64}
    assert named(root, "decode").attributes["twophase.decode_steps"] == 30
    assert named(root, "decode").attributes["twophase.tpot_ms"] == pytest.approx(100)


def test_prefill_knows_what_was_forecast_and_why_no_more() -> None:
    made = answered(choice(cached=64))
    made.foreseen(64, Miss(70, 2, "message edited", (1, 2), (3,)))
    assert named(tree_of(made), "prefill").attributes == {
        "twophase.computed_tokens": 36,
        "twophase.cached_tokens": 64,
        "twophase.cache.forecast_tokens": 64,
        "twophase.cache.miss_index": 70,
        "twophase.cache.miss_cause": "message edited",
    }
