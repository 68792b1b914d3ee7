"""`POST /v1/completions` over the scripted engine: its shapes, its prompts, its refusals."""

from __future__ import annotations

import httpx
import pytest

from service.engine.protocol import Delta, TokenLogprob
from service.errors import EngineUnavailable
from service.prompt.renderer import Renderer
from tests.conftest import Serve
from tests.scripted import ScriptedEngine
from tests.serving import Running, until
from tests.sse import read

ROUTE = "/v1/completions"
TOLD = {"stream": True, "stream_options": {"include_usage": True}}


def ask(client: httpx.Client, **fields: object) -> httpx.Response:
    """A small valid request, with fields replaced or added."""
    return client.post(ROUTE, json={"prompt": "Once upon a time", "max_tokens": 4, **fields})


def texts(response: httpx.Response) -> dict[int, str]:
    """The joined text of each choice of a stream."""
    said: dict[int, str] = {}
    for chunk in read(response).chunks:
        choice = chunk["choices"][0]
        said[choice["index"]] = said.get(choice["index"], "") + choice["text"]
    return said


def test_the_prompt_goes_to_the_model_as_it_is_written(
    client: httpx.Client, engine: ScriptedEngine, renderer: Renderer
) -> None:
    answer = ask(client, prompt="<|im_start|>user\nHello<|im_end|>").json()
    assert renderer.token_strings(engine.started[0].token_ids[:1]) == ["<|im_start|>"]
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": "word " * 4, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"]["prompt_tokens"] == len(engine.started[0].token_ids)
    assert answer["budget"]["template_tokens"] == 0 and answer["phases"]["decode_steps"] == 3


def test_token_ids_go_to_the_model_as_they_are(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert ask(client, prompt=[5, 6, 7]).status_code == 200
    assert ask(client, prompt=[[5, 6], [7]]).status_code == 200
    assert [work.token_ids for work in engine.started] == [[5, 6, 7], [5, 6], [7]]


def test_without_max_tokens_there_are_sixteen(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert ask(client, max_tokens=None).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2}, {"prompt": ["a", "b c", "d"]}, {"prompt": ["a", "b"], "n": 2}]
)
def test_a_joined_stream_is_the_whole_answer(client: httpx.Client, fields: dict[str, object]) -> None:
    whole, streamed = ask(client, **fields).json(), ask(client, **TOLD, **fields)
    events = read(streamed)
    assert texts(streamed) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert events.usage == whole["usage"] and events.objects[-1]["budget"] == whole["budget"]
    assert events.data[-1] == "[DONE]"
    for index in range(len(whole["choices"])):
        assert events.finishes(index) == ["length"]


def test_several_prompts_have_budgets_and_phases_of_their_own_and_usage_together(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    answer = ask(client, prompt=["one", "one two three"]).json()
    sizes = [len(work.token_ids) for work in engine.started]
    assert [budget["prompt_tokens"] for budget in answer["budget"]] == sizes
    assert len(answer["phases"]) == 2
    assert answer["usage"]["prompt_tokens"] == sum(sizes) and answer["usage"]["completion_tokens"] == 8


def test_more_prompts_than_slots_take_turns(serve: Serve) -> None:
    client = serve(max_running=1, max_waiting=8, slo_ttft_ms=600_000)
    answer = ask(client, prompt=["a", "b", "c", "d"]).json()
    assert [choice["text"] for choice in answer["choices"]] == ["word " * 4] * 4


def test_when_one_prompt_is_refused_all_are_and_nothing_is_held(
    client: httpx.Client, server: Running, engine: ScriptedEngine
) -> None:
    engine.script("word ", 30.0, "never")
    response = ask(client, prompt=["fine", "long " * 2000])
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
    until(lambda: server.life.in_flight == 0 and server.parts.admission.held == 0)
    assert engine.aborted == [engine.started[0].id]
    metrics = client.get("/metrics").text
    assert 'twophase_requests_total{outcome="budget_rejected"} 2.0' in metrics


def test_a_failure_of_one_prompt_in_mid_stream_is_one_error_event(
    client: httpx.Client, server: Running, engine: ScriptedEngine
) -> None:
    engine.script("half ", EngineUnavailable("The engine has stopped; try again later."))
    engine.script("word ", 30.0, "never")
    events = read(ask(client, prompt=["a", "b"], max_tokens=9, stream=True))
    assert events.error is not None and events.error["code"] == "engine_unavailable"
    assert "[DONE]" not in events.data
    until(lambda: server.life.in_flight == 0)


def test_logprobs_have_the_older_shape(client: httpx.Client, engine: ScriptedEngine) -> None:
    first = TokenLogprob(1873, -0.25, ((1873, -0.25), (260, -2.0)))
    engine.script(Delta(0, " hello", [1873], "stop", None, logprobs=[first]))
    (choice,) = ask(client, logprobs=2).json()["choices"]
    told = choice["logprobs"]
    assert told["token_logprobs"] == [-0.25] and told["text_offset"] == [0]
    assert len(told["top_logprobs"][0]) == 2 and told["tokens"][0] in told["top_logprobs"][0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["fine", ""]}, "prompt[1]"),
        ({"prompt": [[1, 2], []]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [60_000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 5, "n": 2}, "prompt"),
        ({"n": 9}, "n"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_that_names_it(
    client: httpx.Client, fields: dict[str, object], param: str
) -> None:
    response = ask(client, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_prompt_that_is_too_long_is_refused_by_the_name_its_caller_knows(client: httpx.Client) -> None:
    error = ask(client, prompt=[5] * 3000).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert "messages" not in error["message"]


def test_unknown_fields_are_told_and_strict_refuses_them(client: httpx.Client, serve: Serve) -> None:
    assert ask(client, colour="red").headers["x-ignored-params"] == "colour"
    assert ask(serve(strict=True), colour="red").json()["error"]["param"] == "colour"


def test_a_client_that_leaves_ends_every_prompt(
    client: httpx.Client, server: Running, engine: ScriptedEngine
) -> None:
    for _ in range(2):
        engine.script("word ", 30.0, "never")
    request = {"prompt": ["a", "b"], "max_tokens": 50, "stream": True}
    with client.stream("POST", ROUTE, json=request) as response:
        next(response.iter_lines())
    until(lambda: len(engine.aborted) == 2)
    until(lambda: server.life.in_flight == 0)


def test_the_route_has_its_own_line_in_the_counts(client: httpx.Client) -> None:
    ask(client)
    counted = 'twophase_http_requests_total{route="/v1/completions",status_class="2xx"} 1.0'
    assert counted in client.get("/metrics").text
