"""What a stream's events come to."""

from __future__ import annotations

import orjson

from loadtests.answer import Answer, seconds_of


def said(**delta: object) -> dict[str, object]:
    """An event with one delta."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def read(*events: object, done: bool = True) -> Answer:
    """The answer of these events, read at 1, 2, 3, …"""
    answer = Answer()
    for at, event in enumerate(events, start=1):
        answer.take(orjson.dumps(event), at)
    if done:
        answer.take(b"[DONE]", len(events) + 1)
    return answer


END: dict[str, object] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_a_role_alone_is_no_token() -> None:
    answer = read(said(role="assistant", content=""), said(role="assistant"), said(content="Hi"), END)
    assert answer.said_at == [3]


def test_reasoning_and_tool_calls_are_tokens() -> None:
    answer = read(said(reasoning_content="Hm"), said(tool_calls=[{"index": 0}]), said(content="Hi"), END)
    assert answer.said_at == [1, 2, 3]


def test_tokens_are_the_servers_count_and_not_chunks() -> None:
    usage = {"completion_tokens": 7, "prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 16}}
    answer = read(said(content="three tokens here"), END, {"choices": [], "usage": usage})
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (7, 30, 16)
    assert answer.said_at == [1]


def test_a_usage_chunk_is_no_token_and_brings_the_phases() -> None:
    answer = read(said(content="Hi"), END, {"choices": [], "usage": {}, "phases": {"queue_ms": 3.0}})
    assert answer.said_at == [1]
    assert answer.phases == {"queue_ms": 3.0}
    assert answer.tokens == 1


def test_an_answer_without_its_end_is_not_whole() -> None:
    assert read(said(content="Hi"), END).whole
    assert not read(said(content="Hi"), END, done=False).whole
    assert not read(said(content="Hi")).whole


def test_an_error_event_spoils_what_came_before() -> None:
    answer = read(said(content="Hi"), {"error": {"message": "the engine has died"}}, END)
    assert answer.error == "the engine has died"
    assert not answer.whole


def test_an_event_that_is_no_json_is_an_error() -> None:
    answer = Answer()
    answer.take(b"Internal Server Error", 1.0)
    assert "no JSON" in answer.error


def test_a_whole_body_says_all_at_once() -> None:
    answer = Answer()
    choice = {"index": 0, "message": {"content": "Hi there"}, "finish_reason": "stop"}
    answer.take_whole(orjson.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}), 5.0)
    assert (answer.said_at, answer.tokens, answer.whole) == ([5.0], 2, True)


def test_a_server_may_name_a_date_to_come_back() -> None:
    assert seconds_of("7", 0.0) == 7
    assert seconds_of("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60
    assert seconds_of("Thu, 01 Jan 1970 00:01:40 GMT", 500.0) == 0
    assert seconds_of("soon", 0.0) is None
    assert seconds_of("", 0.0) is None
