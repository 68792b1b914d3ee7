"""What has ended engines and servers elsewhere: here it is refused or served, and nobody else notices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.chaos.conftest import engine_core
from tests.conftest import body
from tests.real.conftest import Served
from tests.serving import until
from tests.sizes import Reference, said
from tests.small.conftest import VOCABULARY, WINDOW
from tests.small.neighbour import CHAT, unharmed

pytestmark = pytest.mark.engine

LOOPS = "{% for a in range(3000) %}{% for b in range(3000) %}x{% endfor %}{% endfor %}"
NUMBERS = (float("nan"), float("inf"), float("-inf"))
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
NONSENSE = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "nonsense"}}}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "seeds beyond 64 bits": [
        ({"seed": seed}, "seed") for seed in (2**64, 2**63, -(2**63) - 1, 10**30, True, 1.5)
    ],
    "numbers that are none": [({name: number}, name) for name in FLOATS for number in NUMBERS],
    "many answers": [({"n": n}, "n") for n in (0, -1, 17, 512, 100_000, 2**63)]
    + [({"n": 2, "best_of": 3}, "best_of")],
    "templates": [
        ({"chat_template": "{{ 7*7 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": LOOPS}}, "chat_template_kwargs.chat_template"),
    ],
    "token ids of no vocabulary": [
        ({"stop_token_ids": [VOCABULARY], "min_tokens": 1}, "stop_token_ids"),
        ({"stop_token_ids": [-1], "min_tokens": 1}, "stop_token_ids"),
        ({"allowed_token_ids": [VOCABULARY]}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**62]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"allowed_token_ids": [260], "bad_words": ["the"]}, "bad_words"),
    ],
    "patterns that do not compile": [
        ({"structured_outputs": {"regex": "[a-"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs"),
        ({"guided_regex": "[a-"}, "guided_regex"),
        ({"response_format": NONSENSE}, "response_format"),
    ],
}
EXPLOSIVE = ("((a{0,60}){0,60}){0,60}b", "(.*a.{30}){20}")


def refused(web: httpx.Client, param: str, **fields: Any) -> dict[str, Any]:
    """The error of a request that names this field, the same in both modes."""
    errors = []
    for stream in (False, True):
        raw = json.dumps(body(stream=stream, **fields))  # as Python writes it: with NaN and all digits
        answer = web.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/json", fields
        errors.append(answer.json()["error"])
    assert errors[0] == errors[1] and errors[0]["param"].startswith(param), errors
    return dict(errors[0])


@pytest.mark.parametrize("kind", REFUSED)
def test_values_that_cannot_be_are_refused_by_name(small: Served, web: httpx.Client, kind: str) -> None:
    with unharmed(small, web):
        for fields, param in REFUSED[kind]:
            began = time.monotonic()
            refused(web, param, **fields)
            assert time.monotonic() - began < 3


def test_the_largest_and_the_smallest_seed_are_served(small: Served, web: httpx.Client) -> None:
    with unharmed(small, web):
        for seed in (2**63 - 1, -1, 0):
            for stream in (False, True):
                answer = web.post(CHAT, json=body(seed=seed, max_tokens=2, stream=stream))
                assert answer.status_code == 200 and "error" not in answer.text, answer.text


def test_a_prompt_as_long_as_the_window_is_refused_before_the_engine_sees_it(
    small: Served, web: httpx.Client, reference: Reference
) -> None:
    full = reference.filled([said("user", 1)], WINDOW)
    with unharmed(small, web):
        for extra in ({}, {"truncate_prompt_tokens": WINDOW}):
            error = refused(web, "", messages=full, max_tokens=1, **extra)
            assert extra or error["code"] == "context_length_exceeded"
        most = reference.filled([said("user", 1)], WINDOW - 1)
        answer = web.post(CHAT, json=body(messages=most, max_tokens=1))
        assert answer.json()["usage"]["total_tokens"] == WINDOW


def test_ids_that_are_no_token_but_have_logits_are_made_without_harm(
    small: Served, web: httpx.Client, reference: Reference
) -> None:
    """A vocabulary is often padded: the model can choose what its tokenizer does not know."""
    tokens = reference.size
    assert tokens < VOCABULARY
    with unharmed(small, web):
        for id in (tokens, (tokens + VOCABULARY) // 2, VOCABULARY - 1):
            for stream in (False, True):
                fields = {"allowed_token_ids": [id], "logprobs": True, "top_logprobs": 2}
                answer = web.post(CHAT, json=body(stream=stream, **fields))
                assert answer.status_code == 200 and "error" not in answer.text, answer.text
        seen = web.post(CHAT, json=body(stop_token_ids=[VOCABULARY - 1], min_tokens=1))
        assert seen.status_code == 200


def held_to(web: httpx.Client, pattern: str) -> httpx.Response:
    """The answer to a request that is held to a pattern."""
    return web.post(CHAT, json=body(structured_outputs={"regex": pattern}, max_tokens=32), timeout=60)


def test_patterns_that_explode_are_refused_in_their_time(small: Served, web: httpx.Client) -> None:
    with unharmed(small, web, neighbours=4) as streams, ThreadPoolExecutor(2) as pool:
        in_a_crowd = list(pool.map(lambda pattern: held_to(web, pattern), EXPLOSIVE))
    assert max(stream.longest_pause_s for stream in streams) < 3
    for answer in in_a_crowd:  # where the machine has no time to look at it, that is to be asked again
        assert answer.status_code in (200, 400) or answer.headers["retry-after"].isdigit(), answer.text
    for pattern in EXPLOSIVE:
        answer = held_to(web, pattern)
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert "structured_outputs" in answer.json()["error"]["param"]


def test_who_leaves_while_a_pattern_explodes_takes_its_trial_along(small: Served, web: httpx.Client) -> None:
    with unharmed(small, web):
        for number in range(6):
            asked = body(structured_outputs={"regex": f"(.*{number}.{{30}}){{20}}"})
            with pytest.raises(httpx.ReadTimeout):
                web.post(CHAT, json=asked, timeout=0.05)
    assert held_to(web, "(yes|no)").status_code == 200


@pytest.mark.parametrize("megabytes", [5, 27])
def test_a_body_far_too_large_is_refused_unread(small: Served, web: httpx.Client, megabytes: int) -> None:
    raw = json.dumps(body(messages=[{"role": "user", "content": "word " * (megabytes * 200_000)}]))
    with unharmed(small, web, neighbours=2) as streams:
        answer = web.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert max(stream.longest_pause_s for stream in streams) < 3
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


def test_many_more_than_can_be_served_are_served_or_told_when_to_come_back(
    small: Served, web: httpx.Client
) -> None:
    long = [{"role": "user", "content": "word " * (WINDOW // 2)}]
    asked = body(messages=long, max_tokens=16, ignore_eos=True)
    with unharmed(small, web, neighbours=0), ThreadPoolExecutor(150) as pool:
        answers = list(pool.map(lambda _: web.post(CHAT, json=asked), range(150)))
    served = [answer for answer in answers if answer.status_code == 200]
    told = [answer for answer in answers if answer.status_code == 429]
    assert served and told and len(served) + len(told) == len(answers)
    assert all(answer.json()["usage"]["completion_tokens"] == 16 for answer in served)
    assert all(answer.headers["retry-after"].isdigit() and answer.json()["error"] for answer in told)


def test_one_id_for_two_requests_keeps_them_apart(small: Served, web: httpx.Client) -> None:
    @contextmanager
    def stream(question: str) -> Iterator[Iterator[str]]:
        messages = [{"role": "user", "content": question}]
        fields = {"messages": messages, "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        asked = body(stream=True, request_id="same-1", **fields)
        with web.stream("POST", CHAT, json=asked, headers={"x-request-id": "same-1"}) as response:
            assert response.status_code == 200 and response.headers["x-request-id"] == "same-1"
            yield response.iter_lines()

    with stream("And who stays?") as alone:
        expected = [line.partition('"choices"')[2] for line in alone]
    with unharmed(small, web, neighbours=0), stream("And who stays?") as stays:
        with stream("Who leaves?") as leaves:
            next(leaves)
        assert [line.partition('"choices"')[2] for line in stays] == expected


def test_an_idle_engine_that_stands_still_is_seen_as_well(small: Served, web: httpx.Client) -> None:
    core = engine_core(small)
    with unharmed(small, web, neighbours=0):
        core.suspend()
        try:
            until(lambda: web.get("/readyz").status_code == 503, within_s=15)
            assert web.get("/health").json()["error"]["code"] == "engine_unavailable"
        finally:
            core.resume()
        until(lambda: web.get("/readyz").status_code == 200, within_s=15)


def test_an_engine_that_stood_still_is_the_same_when_it_moves(small: Served, web: httpx.Client) -> None:
    core = engine_core(small)
    whole = {"messages": [{"role": "user", "content": "Who am I?"}], "max_tokens": 32, "temperature": 0}
    before = web.post(CHAT, json=whole).json()["choices"]
    with unharmed(small, web, neighbours=0):
        asked = body(stream=True, n=16, max_tokens=900, ignore_eos=True)
        with web.stream("POST", CHAT, json=asked) as response:
            lines = response.iter_lines()
            next(lines)
            core.suspend()
            try:
                until(lambda: web.get("/readyz").status_code == 503, within_s=15)
                assert web.get("/livez").status_code == 200
                rest = "".join(lines)
            finally:
                core.resume()
        assert "engine_unavailable" in rest and "[DONE]" not in rest
        until(lambda: web.get("/readyz").status_code == 200, within_s=15)
        assert web.post(CHAT, json=whole).json()["choices"] == before, "nothing stale comes to others"
