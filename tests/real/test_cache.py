"""The prefix cache as a conversation with the embedded model meets it."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
BLOCK = 128  # of vLLM on a CPU


def test_a_conversation_that_goes_on_finds_its_own_reply_in_the_cache(web: httpx.Client) -> None:
    question = "Tell me in a few long sentences what a lighthouse keeper does all day. "
    hint = "There is the lamp to clean, the log to write, the boats to watch and the stairs to climb. "
    talk = [{"role": "user", "content": question + 3 * hint}]
    first = web.post(CHAT, json={"messages": talk, "max_tokens": 140, "temperature": 0}).json()
    prompt, reply = first["usage"]["prompt_tokens"], first["choices"][0]["message"]
    assert prompt < BLOCK < first["usage"]["total_tokens"]
    talk += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "Why?"}]
    told = web.post(f"{CHAT}/explain", json={"messages": talk, "max_tokens": 2}).json()
    cache = web.post(CHAT, json={"messages": talk, "max_tokens": 2}).json()["phases"]["cache"]
    assert cache["forecast_tokens"] == cache["cached_tokens"] == told["cache"]["forecast_tokens"]
    assert cache["cached_tokens"] == BLOCK, "a block that is mostly the reply's"
    assert told["predicted"]["ttft_ms"] > 0


def test_a_time_stamp_in_a_system_prompt_is_found_with_its_text(web: httpx.Client) -> None:
    clocks = (f"You are a helpful assistant. It is {clock} now." for clock in ("10:15:01", "10:15:09"))
    then, now = (
        [{"role": "system", "content": clock}, {"role": "user", "content": "Hello."}] for clock in clocks
    )
    web.post(CHAT, json={"messages": then, "max_tokens": 2})
    told = web.post(f"{CHAT}/explain", json={"messages": now, "max_tokens": 2}).json()["cache"]
    assert (told["miss"]["message"], told["miss"]["cause"]) == (0, "system prompt changed")
    assert told["miss"]["text_before"].startswith("1 now.")
    assert told["miss"]["text_after"].startswith("9 now.")
    assert "system prompt" in told["advice"]
