"""Every cause of a cold prefix, provoked on the real engine: what is forecast is what it has."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from service.prompt.causes import ADVICE

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
BLOCK = 128  # of vLLM on a CPU
LONG = "The ferry crosses the fjord four times a day, and the keeper counts the waves. " * 12

Talk = list[dict[str, str]]


def turns(*contents: str) -> Talk:
    """Alternating turns, the user's first."""
    return [
        {"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)
    ]


def system(content: str) -> Talk:
    return [{"role": "system", "content": content}]


@pytest.fixture
def new() -> str:
    """Text that nobody has sent before."""
    return f"{time.monotonic_ns()}. "


class Asker:
    """Asks, and holds the forecast of every answer against what the engine had."""

    def __init__(self, web: httpx.Client) -> None:
        self._web = web

    def answer(self, messages: Talk, **fields: Any) -> dict[str, Any]:
        body = {"messages": messages, "max_tokens": 2, "ignore_eos": True, "temperature": 0, **fields}
        response = self._web.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def cache(self, messages: Talk, **fields: Any) -> dict[str, Any]:
        """`phases.cache` of an answer, the same as explain had told before."""
        body = {"messages": messages, "max_tokens": 2, **fields}
        told = self._web.post(f"{CHAT}/explain", json=body).json()["cache"]
        had = dict(self.answer(messages, **fields)["phases"]["cache"])
        assert had["forecast_tokens"] == had["cached_tokens"] == told["forecast_tokens"]
        if had["miss"] is None:
            assert told["miss"] is told["advice"] is None
        else:
            assert had["miss"].items() <= told["miss"].items()
            assert told["advice"] == ADVICE[had["miss"]["cause"]]
        return had

    def ids(self, messages: Talk, **fields: Any) -> list[int]:
        return list(self._web.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"])

    def part(self, then: Talk, now: Talk, **fields: Any) -> int:
        """Where the tokens of two prompts differ first."""
        pairs = zip(self.ids(then), self.ids(now, **fields), strict=False)
        return next(at for at, (old, new) in enumerate(pairs) if old != new)


@pytest.fixture
def asker(web: httpx.Client) -> Asker:
    return Asker(web)


def test_what_was_never_sent_is_never_seen(asker: Asker, new: str) -> None:
    had = asker.cache(system(f"{new} {LONG}") + turns("Who?"))
    assert had["cached_tokens"] == 0
    assert (had["miss"]["message"], had["miss"]["cause"]) == (0, "never seen")


def test_a_new_question_behind_the_same_system_prompt_is_never_seen(asker: Asker, new: str) -> None:
    then, now = (system(new + LONG) + turns(question) for question in ("Who is it?", f"{new}, why?"))
    asker.answer(then)
    had = asker.cache(now)
    assert had["cached_tokens"] == 128
    assert had["miss"] == {"index": asker.part(then, now), "message": 1, "cause": "never seen"}


def test_the_same_prompt_again_ends_at_a_block_boundary(asker: Asker, new: str) -> None:
    messages = turns(new + LONG)
    asker.answer(messages)
    had = asker.cache(messages)
    assert had["cached_tokens"] % BLOCK == 0 < had["cached_tokens"]
    assert had["miss"] == {"index": had["cached_tokens"], "message": 0, "cause": "block boundary"}


def test_a_prompt_of_whole_blocks_and_one_token_misses_nothing(asker: Asker, new: str) -> None:
    text = new + LONG
    words = 2 * BLOCK + 1 - len(asker.ids(turns(new)))
    text = new + "word " * (words - 1) + "word"
    while len(asker.ids(turns(text))) < 2 * BLOCK + 1:
        text += " word"
    while len(asker.ids(turns(text))) > 2 * BLOCK + 1:
        text = text.removesuffix(" word")
    asker.answer(turns(text))
    had = asker.cache(turns(text))
    assert had == {"forecast_tokens": 2 * BLOCK, "cached_tokens": 2 * BLOCK, "miss": None}


def test_an_edited_message_is_named(asker: Asker, new: str) -> None:
    then = turns(new + LONG, "Four times.", LONG, "Yes.", "Why?")
    now = [*then[:2], {"role": "user", "content": LONG.replace("keeper", "captain")}, *then[3:]]
    asker.answer(then)
    had = asker.cache(now)
    assert had["cached_tokens"] == 256
    assert had["miss"] == {"index": asker.part(then, now), "message": 2, "cause": "message edited"}


def test_an_inserted_message_is_named(asker: Asker, new: str) -> None:
    then = turns(new + LONG, "Four times.", LONG)
    now = [*then[:1], {"role": "user", "content": "Wait."}, *then[1:]]
    asker.answer(then)
    assert asker.cache(now)["miss"] == {
        "index": asker.part(then, now),
        "message": 1,
        "cause": "message inserted",
    }


def test_truncated_history_is_named(asker: Asker, new: str) -> None:
    then = [*system(LONG + new), *turns("One?", "Yes.", f"Two? {LONG}", "No.", "Three?")]
    now = [then[0], *then[3:]]
    asker.answer(then)
    had = asker.cache(now)
    assert had["cached_tokens"] == 128
    assert had["miss"] == {"index": asker.part(then, now), "message": 1, "cause": "history truncated"}


def test_history_that_the_service_cuts_is_named_by_the_callers_numbers(asker: Asker, new: str) -> None:
    then = [*system(LONG + new), *turns(LONG, "Yes.", f"Two? {LONG}", "No.", "Three?")]
    asker.answer(then, truncation="auto")
    had = asker.cache([*then, *turns("", "Four.", LONG + LONG)[1:]], truncation="auto")
    assert had["cached_tokens"] == 128
    assert (had["miss"]["message"], had["miss"]["cause"]) == (3, "history truncated")


def test_a_time_stamp_in_a_system_prompt_is_found(asker: Asker, new: str) -> None:
    then, now = (
        system(f"{new}{LONG} It is {clock} now. Be brief.") + turns("Who keeps it?")
        for clock in ("10:15:01", "10:15:09")
    )
    asker.answer(then)
    had = asker.cache(now)
    assert had["cached_tokens"] == 128
    assert had["miss"] == {"index": asker.part(then, now), "message": 0, "cause": "system prompt changed"}


def test_another_date_in_the_template_is_a_changed_template(asker: Asker, new: str) -> None:
    messages = turns(new + LONG)
    dates = ({"chat_template_kwargs": {"date": day}} for day in ("a sunny day", "a rainy day"))
    then, now = dates
    asker.answer(messages, **then)
    had = asker.cache(messages, **now)
    assert had["cached_tokens"] == 0
    assert (had["miss"]["message"], had["miss"]["cause"]) == (None, "template changed")


def test_other_tools_are_named(asker: Asker, new: str) -> None:
    """In the template of this model tools stand before the first message."""
    messages = turns(new + LONG)
    tools = [{"type": "function", "function": {"name": name}} for name in ("sounding", "weather")]
    called = {"tool_choice": "required", "max_tokens": 24, "ignore_eos": False}
    asker.answer(messages, tools=tools[:1], **called)
    had = asker.cache(messages, tools=tools, **called)
    assert had["cached_tokens"] == 0
    assert (had["miss"]["message"], had["miss"]["cause"]) == (None, "tools changed")


def test_a_reply_that_comes_back_as_other_tokens_is_named(asker: Asker, new: str) -> None:
    """The model's text is nonsense, which a tokenizer cuts in other places than the model has."""
    then = turns(new + LONG)
    answer = asker.answer(then, max_tokens=200)
    now = [*then, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, *turns("So?")]
    had = asker.cache(now)
    prompt = answer["usage"]["prompt_tokens"]
    assert prompt - 1 <= had["miss"]["index"] < prompt + 200
    assert (had["miss"]["message"], had["miss"]["cause"]) == (1, "reply re-tokenized")


def test_a_prompt_shorter_than_a_block_is_never_cached_and_that_is_why(asker: Asker, new: str) -> None:
    asker.answer(turns(new))
    had = asker.cache(turns(new))
    assert had["cached_tokens"] == 0
    assert (had["miss"]["index"], had["miss"]["cause"]) == (0, "block boundary")


def test_what_the_engine_has_given_away_is_a_forecast_above_the_truth(
    asker: Asker, web: httpx.Client, new: str
) -> None:
    asker.answer(turns(new + LONG))
    capacity = web.get("/v1/capacity").json()["capacity_tokens"]
    written = number = 0
    while written < 1.2 * capacity:
        number += 1
        written += asker.answer(turns(f"{new}{number}. {LONG * 4}"))["usage"]["prompt_tokens"]
    cache = asker.answer(turns(new + LONG))["phases"]["cache"]
    assert cache["forecast_tokens"] == 256
    assert cache["cached_tokens"] == 0
