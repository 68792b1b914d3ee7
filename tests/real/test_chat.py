"""Real chat: a real socket, a real uvicorn, the real engine and the embedded model."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from service import __version__
from tests.real.conftest import Served
from tests.sse import read

pytestmark = pytest.mark.engine

FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    """The official client, pointed at the service and otherwise as it comes."""
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")


def ask(web: httpx.Client, **fields: object) -> httpx.Response:
    """A greedy request about France, with fields replaced or added."""
    request = {"messages": FRANCE, "temperature": 0, "max_tokens": 40, **fields}
    response = web.post("/v1/chat/completions", json=request)
    assert response.status_code == 200, response.text
    return response


def test_the_capital_of_france_streams_token_by_token(web: httpx.Client) -> None:
    request = {"messages": FRANCE, "temperature": 0, "stream": True}
    arrivals = []
    with web.stream("POST", "/v1/chat/completions", json=request) as response:
        text = ""
        for line in response.iter_lines():
            if line:
                arrivals.append(time.monotonic())
                text += line
    assert "Paris" in text
    assert len(arrivals) > 5 and arrivals[-1] - arrivals[0] > 0.1, "it came in one piece"


def test_the_official_client_streams_and_gets_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=FRANCE,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert "Paris" in text
    assert usage is not None and usage.prompt_tokens == 37
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_the_official_client_gets_a_whole_answer_and_typed_errors(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=FRANCE,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.NotFoundError, match="There is no model gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=FRANCE)
    with pytest.raises(openai.BadRequestError, match="max_tokens must be"):
        client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=FRANCE,
            max_tokens=0,
        )


def test_both_modes_give_one_text_one_finish_and_one_usage(web: httpx.Client) -> None:
    for fields in ({}, {"max_tokens": 3}, {"stop": ["Fran"]}, {"stop": [" of France"]}):
        whole = ask(web, **fields).json()
        streamed = read(ask(web, stream=True, stream_options={"include_usage": True}, **fields))
        assert streamed.text() == whole["choices"][0]["message"]["content"]
        assert streamed.finishes() == [whole["choices"][0]["finish_reason"]]
        assert streamed.usage is not None
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert streamed.usage[name] == whole["usage"][name], fields


def test_the_end_token_ends_the_answer_is_counted_and_never_shown(web: httpx.Client) -> None:
    answer = ask(web).json()
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 8  # seven of text and the end token


def test_a_stop_string_never_shows_not_even_in_part(web: httpx.Client) -> None:
    events = read(ask(web, stream=True, stop=["France is"]))
    assert events.text() == "The capital of "
    assert events.finishes() == ["stop"]
    with_it = read(ask(web, stream=True, stop=["France is"], include_stop_str_in_output=True))
    assert with_it.text() == "The capital of France is"


def test_characters_that_span_tokens_arrive_whole(web: httpx.Client, served: Served) -> None:
    emoji = {"role": "user", "content": "Repeat exactly this text and nothing else: 🦊 ďábel 河 🎉🎉"}

    def cut_after(tokens: int) -> None:
        fields = {"messages": [emoji], "max_tokens": tokens, "ignore_eos": True}
        events = read(ask(web, stream=True, **fields))
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in events.chunks]
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
        assert events.text() == ask(web, **fields).json()["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(cut_after, range(1, 24)))


def test_one_seed_gives_one_text_and_n_gives_different_ones(web: httpx.Client) -> None:
    fields = {"n": 3, "seed": 11, "temperature": 1.2, "max_tokens": 24}
    first, second = (ask(web, **fields).json()["choices"] for _ in range(2))
    texts = [choice["message"]["content"] for choice in first]
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts == [choice["message"]["content"] for choice in second]
    greedy = ask(web, n=3).json()["choices"]
    assert len({choice["message"]["content"] for choice in greedy}) == 1


def test_equal_prompts_are_found_in_the_cache(web: httpx.Client) -> None:
    long = [{"role": "user", "content": "word " * 500}]
    cached = [
        ask(web, messages=long, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert cached[1] > 0


def test_thirty_streams_at_once_all_end_well(web: httpx.Client) -> None:
    def one(number: int) -> str:
        messages = [{"role": "user", "content": f"Count from {number}."}]
        return read(ask(web, stream=True, messages=messages, max_tokens=30, ignore_eos=True)).finishes()[0]

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(one, range(30))) == ["length"] * 30


def test_version_and_models_say_what_is_served(web: httpx.Client) -> None:
    assert web.get("/version").json() == {
        "twophase": __version__,
        "vllm": "0.32.0",
        "model": "smollm2-135m-instruct",
    }
    card = web.get("/v1/models").json()["data"][0]
    assert card["id"] == "smollm2-135m-instruct" and card["max_model_len"] == 8192
    assert web.get("/v1/models/smollm2-135m-instruct").json() == card
    assert web.get("/v1/models/other").status_code == 404
