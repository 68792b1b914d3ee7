"""Explain: what a request would cost and why, without a run. Over a real socket, engine scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.budget.kv import KvCost
from service.budget.plan import Budget
from service.chat.explain import Explanation
from service.chat.request import ChatRequest
from service.prompt.prompt import Prompt, Segment
from tests.conftest import Serve, body
from tests.serving import Running
from tests.sizes import CHAT, EXPLAIN, GROUPED, Message, Reference, Sized, calling, probed, result, said

Explain = Callable[..., dict[str, Any]]

# Six tokens of template around each of three assistant turns and five around each of the others.
TALK = [said("system", 100), *[said(role, 150) for _ in range(3) for role in ("user", "assistant")]]
THREE_TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say something 🦊 about the 東京 rivers."},
    {"role": "assistant", "content": "def f(x):\n    return x\n"},
    {"role": "user", "content": "Don't."},
]


@pytest.fixture
def engine(sized: tuple[Sized, Running]) -> Sized:
    return sized[0].renew(4_096)


@pytest.fixture
def server(sized: tuple[Sized, Running], engine: Sized) -> Running:
    return sized[1]


@pytest.fixture
def explain(client: httpx.Client) -> Explain:
    """POST to explain, which has to accept it."""

    def post(**fields: object) -> dict[str, Any]:
        response = client.post(EXPLAIN, json=body(**fields))
        assert response.status_code == 200, response.text
        return dict(response.json())

    return post


def test_the_sum_of_the_worked_example_fits(explain: Explain) -> None:
    told = explain(messages=TALK, add_generation_prompt=False, max_tokens=200)
    assert told["budget"] == {
        "context_window": 4_096,
        "input_limit": 4_095,
        "output_limit": 3_058,
        "prompt_tokens": 1_038,
        "template_tokens": 38,
        "content_tokens": 1_000,
        "max_output_tokens": 200,
        "action": "none",
        "dropped_messages": 0,
        "clamped_from": None,
        "input_limited_by": "window",
        "output_limited_by": "window",
        "decided_by": None,
    }
    assert told["kv"]["total_tokens"] == 1_238


def test_the_worked_example_of_cache_memory_comes_out(explain: Explain, reference: Reference) -> None:
    told = explain(messages=reference.filled([said("user", 1)], 1_000), max_tokens=200)
    assert told["kv"] == {
        "bytes_per_token": 131_072,
        "prompt_tokens": 1_000,
        "prompt_bytes": 131_072_000,
        "total_tokens": 1_200,
        "total_bytes": 157_286_400,
        "approximate": None,
    }


def test_answers_of_one_request_share_its_prompt(explain: Explain, reference: Reference) -> None:
    told = explain(messages=reference.filled([said("user", 1)], 1_000), max_tokens=200, n=3)
    assert told["kv"]["prompt_bytes"] == 1_000 * 131_072
    assert told["kv"]["total_bytes"] == (1_000 + 3 * 200) * 131_072


def test_a_formula_that_is_only_nearly_right_says_so(explain: Explain, engine: Sized) -> None:
    engine.model = {**GROUPED, "layer_types": ["sliding_attention", "full_attention"] * 16}
    assert "sliding_attention" in explain()["kv"]["approximate"]
    engine.model = {}
    kv = explain()["kv"]
    assert (kv["bytes_per_token"], kv["prompt_bytes"], kv["total_bytes"]) == (None, None, None)
    assert "configuration" in kv["approximate"]


def test_every_token_belongs_to_a_message_or_to_the_generation_prompt(explain: Explain) -> None:
    told = explain(messages=THREE_TURNS)
    costs = [(cost["content_tokens"], cost["template_tokens"]) for cost in told["messages"]]
    assert [template for _, template in costs] == [5, 5, 6, 5]
    assert sum(content for content, _ in costs) == told["budget"]["content_tokens"]
    assert sum(template for _, template in costs) + 4 == told["budget"]["template_tokens"]
    assert told["shares"]["generation_prompt"]["tokens"] == 4


def test_shares_cover_the_prompt(explain: Explain) -> None:
    messages = [said("developer", 20), said("user", 30), said("assistant", 40), said("user", 50)]
    messages += [calling("c1"), result("c1", "word word word")]
    told = explain(messages=messages)
    assert {part: share["tokens"] for part, share in told["shares"].items()} == {
        "system_prompt": 25,
        "history": 35 + 46,
        "newest_turn": 55 + 6 + 8,
        "tool_definitions": 0,
        "generation_prompt": 4,
        "other": 0,
    }
    assert told["shares"]["history"]["share"] == round(81 / told["prompt_tokens"], 4)
    assert [cost["role"] for cost in told["messages"]] == [message["role"] for message in messages]


def test_the_system_prompt_a_template_brings_is_template_text(explain: Explain) -> None:
    first = explain(messages=[said("user", 3)])["messages"][0]
    assert (first["content_tokens"], first["template_tokens"]) == (3, 26)


def test_segments_are_the_prompt_in_order(explain: Explain, reference: Reference) -> None:
    prompt = explain(messages=THREE_TURNS)["prompt"]
    segments = prompt["segments"]
    assert [at for segment in segments for at in segment["token_ids"]] == reference.ids(THREE_TURNS)
    assert "".join(segment["text"] for segment in segments) == prompt["text"]
    content = {segment["message"]: segment["text"] for segment in segments if segment["kind"] == "content"}
    assert content == {index: message["content"] for index, message in enumerate(THREE_TURNS)}
    assert segments[-1]["kind"] == "generation" and segments[-1]["message"] is None


def test_a_caller_who_may_not_see_the_prompt_gets_the_counts_alone() -> None:
    request = ChatRequest(messages=[said("user", 2)])
    prompt = Prompt([1, 2, 3], (Segment(0, "content", 0, 2), Segment(None, "generation", 2, 3)), 1, "secret")
    budget = Budget(100, 99, "window", 97, "window", 3, 1, 97)
    told = Explanation(request, prompt, budget, KvCost(2), None, {}).report(None)
    assert told["prompt"] is None and "secret" not in str(told)
    assert told["messages"][0]["content_tokens"] == 2


def test_dropped_messages_are_told_by_their_numbers(explain: Explain, reference: Reference) -> None:
    told = explain(messages=TALK, max_tokens=3_600, truncation="auto")
    kept = [TALK[0], *TALK[5:]]
    assert [cost["dropped"] for cost in told["messages"]] == [False, True, True, True, True, False, False]
    assert told["prompt_tokens"] == reference.count(kept)
    assert told["budget"]["dropped_messages"] == 4
    assert told["budget"]["action"] == "truncated" and told["budget"]["decided_by"] == "window"
    assert all(
        cost["content_tokens"] == cost["template_tokens"] == 0 for cost in told["messages"] if cost["dropped"]
    )
    assert {segment["message"] for segment in told["prompt"]["segments"]} == {0, 5, 6, None}


@pytest.mark.parametrize(
    ("limits", "fields", "decided_by", "action"),
    [
        ({"max_output_tokens": 50}, {"max_tokens": 60}, "service", "clamped"),
        ({}, {"max_tokens": 4_096}, "window", "clamped"),
        ({"max_input_tokens": 600}, {"max_tokens": 60, "truncation": "auto"}, "service", "truncated"),
        ({"max_output_tokens": 50}, {"max_tokens": 50}, None, "none"),
        (
            {"max_input_tokens": 600, "max_output_tokens": 50},
            {"max_tokens": 60, "truncation": "auto"},
            "service",
            "truncated+clamped",
        ),
    ],
)
def test_the_limit_that_decided_is_named(
    serve: Serve, limits: dict[str, Any], fields: dict[str, Any], decided_by: str | None, action: str
) -> None:
    response = serve(**limits).post(EXPLAIN, json=body(messages=TALK, **fields))
    budget = response.json()["budget"]
    assert (budget["decided_by"], budget["action"]) == (decided_by, action)
    assert response.headers["x-budget-action"] == action
    assert budget["input_limited_by"] == ("service" if "max_input_tokens" in limits else "window")
    assert budget["output_limited_by"] == ("service" if "max_output_tokens" in limits else "window")


def test_explain_touches_no_engine_and_streams_nothing(explain: Explain, engine: Sized) -> None:
    assert explain(stream=True, stream_options={"include_usage": True})["object"].endswith("explanation")
    assert engine.started == []


def test_a_long_answer_gets_advice_about_writing(explain: Explain) -> None:
    told = explain(max_tokens=200)
    assert told["dominated_by"] == "decode"
    assert "199 decode steps" in told["advice"] and "lower max_tokens" in told["advice"]
    assert "set max_tokens" in explain(max_tokens=None)["advice"]
    assert "lower max_completion_tokens" in explain(max_completion_tokens=200)["advice"]


@pytest.mark.parametrize(
    ("messages", "part", "tokens", "remedy"),
    [
        ([said("system", 900), said("user", 5)], "the system prompt", 905, "cached"),
        ([said("user", 5), said("assistant", 900), said("user", 5)], "earlier turns", 937, "truncation"),
        ([said("system", 5), said("user", 900)], "the newest turn", 905, "documents"),
    ],
)
def test_a_long_prompt_gets_advice_about_its_largest_part(
    explain: Explain, messages: list[Message], part: str, tokens: int, remedy: str
) -> None:
    told = explain(messages=messages, max_tokens=2)
    assert told["dominated_by"] == "prefill"
    assert f"{told['prompt_tokens']} prompt tokens" in told["advice"]
    assert f"{tokens} of them are {part}" in told["advice"] and remedy in told["advice"]
    assert told["advice"].count(".") == 1, "one sentence"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": None}]},
        {"max_tokens": 0},
        {"model": "gpt-4"},
        {"n": 9},
        {"seed": 2**63 - 1, "n": 2},
        {"min_tokens": 5},
        {"stop_token_ids": [49_152]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template": "{{ 7 * 7 }}"},
        {"chat_template_kwargs": {"messages": []}},
        {"stream_options": {"include_usage": True}},
        {"continue_final_message": True},
        {"messages": [said("user", 5_000)]},
        {"messages": [said("user", 5_000)], "truncation": "auto"},
        {"messages": [said("user", 10)], "max_tokens": 4_000, "n": 8},
    ],
)
def test_what_chat_refuses_explain_refuses_with_the_same_error(
    client: httpx.Client, engine: Sized, fields: dict[str, Any]
) -> None:
    engine.cache = 8_192
    explained, answered = (client.post(route, json=body(**fields)) for route in (EXPLAIN, CHAT))
    assert explained.status_code == answered.status_code >= 400
    assert explained.json() == answered.json()
    assert engine.started == []


@pytest.mark.parametrize("policy", [{"input_policy": "reject", "output_policy": "reject"}, {}])
def test_the_second_worked_example_does_not_fit(
    serve: Serve, reference: Reference, policy: dict[str, Any]
) -> None:
    request = body(messages=reference.filled([said("user", 1)], 3_950), max_tokens=200)
    client = serve(**policy)
    explained, answered = (client.post(route, json=request) for route in (EXPLAIN, CHAT))
    if policy:
        assert explained.status_code == answered.status_code == 400
        error = answered.json()["error"]
        assert error == explained.json()["error"] and error["code"] == "context_length_exceeded"
        assert "This model's maximum context length is 4096 tokens" in error["message"]
        assert "3950" in error["message"] and "200" in error["message"]
    else:
        assert explained.json()["budget"]["clamped_from"] == 200
        assert answered.json()["budget"]["max_output_tokens"] == 146
        assert answered.json()["usage"]["completion_tokens"] == 146


def test_five_thousand_turns_are_explained_while_others_are_served(server: Running, engine: Sized) -> None:
    engine.window = 200_000
    messages = [said(role, 3) for _ in range(2_500) for role in ("user", "assistant")]
    with server.client() as client, probed(server):
        told = client.post(EXPLAIN, json=body(messages=messages)).json()
    assert len(told["messages"]) == 5_000
    assert sum(share["tokens"] for share in told["shares"].values()) == told["prompt_tokens"]
