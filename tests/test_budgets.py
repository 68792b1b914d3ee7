"""Every request inside its budget: counted on the final prompt, cut by whole turns, told what was done.

Over a real socket; the scripted engine remembers the token ids it was given.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from service.prompt.renderer import Renderer
from tests.conftest import Chat, Serve, body
from tests.scripted import Step
from tests.serving import Running
from tests.sizes import CHAT, EXPLAIN, Message, Reference, Sized, calling, refused, result, said
from tests.sse import read


@pytest.fixture
def engine(sized: tuple[Sized, Running]) -> Sized:
    return sized[0].renew(1_024)


@pytest.fixture
def server(sized: tuple[Sized, Running], engine: Sized) -> Running:
    return sized[1]


class TestOneCount:
    """Explain, budget, usage and the model's own tokenizer agree on how long a prompt is."""

    SHAPES: dict[str, tuple[list[Message], dict[str, Any]]] = {
        "one question": ([{"role": "user", "content": "Name three 🦊 rivers."}], {}),
        "a long talk": (
            [
                {"role": "system", "content": "Be brief.\n"},
                {"role": "user", "content": "  What does this do?\n\ndef f(x):\n    return x\n"},
                {"role": "assistant", "content": "It returns 東京.\t"},
                {"role": "user", "content": ""},
                {"role": "assistant", "content": "Ünïcode e\u0301"},
                {"role": "user", "content": "\nSo?"},
            ],
            {},
        ),
        "parallel tools": (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "How deep, how wide?"},
                calling("c1", "c2"),
                result("c2", "30 m"),
                result("c1", "4 m"),
                {"role": "assistant", "content": "Both known."},
                {"role": "user", "content": "So?"},
            ],
            {},
        ),
        "text in parts": (
            [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": [{"type": "text", "text": text} for text in ("One.", " Two.")]},
                {"role": "assistant", "content": [{"type": "text", "text": "Noted."}]},
                {"role": "user", "content": [{"type": "text", "text": text} for text in ("So", "?")]},
            ],
            {},
        ),
        "an answer to continue": (
            [
                {"role": "user", "content": "Ready?"},
                {"role": "assistant", "content": "Yes"},
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes"},
            ],
            {"continue_final_message": True},
        ),
    }

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("policy", ["reject", "truncate", "clamp"])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_all_counts_of_a_prompt_are_one_number(
        self, serve: Serve, engine: Sized, reference: Reference, shape: str, policy: str, stream: bool
    ) -> None:
        messages, flags = self.SHAPES[shape]
        whole = reference.count(messages, **flags)
        tight = policy == "truncate" and shape != "one question"
        engine.window = whole + 4 - tight
        client = serve(
            input_policy="truncate" if policy == "truncate" else "reject",
            output_policy="clamp" if policy == "clamp" else "reject",
        )
        request = body(messages=messages, max_tokens=9 if policy == "clamp" else 4, **flags)
        told = client.post(EXPLAIN, json=request).json()
        usage, budget = _answered(client, request, stream=stream)

        kept = _without_oldest(messages, budget["dropped_messages"])
        count = reference.count(kept, **flags)
        assert told["prompt_tokens"] == told["budget"]["prompt_tokens"] == count
        assert budget["prompt_tokens"] == usage["prompt_tokens"] == count
        assert engine.started[-1].token_ids == reference.ids(kept, **flags)
        assert budget["content_tokens"] + budget["template_tokens"] == count
        assert budget == {name: told["budget"][name] for name in budget}
        expected = {"reject": "none", "truncate": "truncated" if tight else "none", "clamp": "clamped"}
        assert budget["action"] == expected[policy]
        assert usage["completion_tokens"] == budget["max_output_tokens"] == 4

    def test_template_arguments_are_part_of_the_count(
        self, serve: Serve, engine: Sized, reference: Reference, embedded_model: Path, tmp_path: Path
    ) -> None:
        source = (embedded_model / "chat_template.jinja").read_text() + "{% if deep %}<think>\n{% endif %}"
        template = tmp_path / "deep.jinja"
        template.write_text(source)
        client = serve(Renderer.load(str(embedded_model), chat_template=template))
        messages = reference.filled([said("user", 1)], 1_024 - 16)
        for deep in (False, True):
            more = reference.count(messages, chat_template=source, deep=deep)
            response = client.post(
                CHAT, json=body(messages=messages, max_tokens=16, chat_template_kwargs={"deep": deep})
            )
            usage = response.json()["usage"]
            assert usage["prompt_tokens"] == more and usage["total_tokens"] == 1_024

    def test_a_start_token_comes_once(
        self, serve: Serve, engine: Sized, embedded_model: Path, tmp_path: Path
    ) -> None:
        model = _with_start_token(embedded_model, tmp_path)
        reference = Reference(model)
        messages = [said("system", 3), said("user", 3), said("assistant", 3), said("user", 3)]
        client = serve(Renderer.load(str(model)))
        usage = client.post(CHAT, json=body(messages=messages)).json()["usage"]
        assert engine.started[0].token_ids == reference.ids(messages)
        assert engine.started[0].token_ids.count(0) == 1
        assert usage["prompt_tokens"] == reference.count(messages)
        wish = {"prompt": "word"}
        assert client.post("/tokenize", json=wish).json()["tokens"][0] == 0
        assert client.post("/tokenize", json={**wish, "add_special_tokens": False}).json()["count"] == 1
        wished = client.post("/tokenize", json={"messages": messages, "add_special_tokens": True}).json()
        assert wished["tokens"] == [0, *reference.ids(messages)], "as asked for: the template has its own"


class TestBoundaries:
    """Around the window W, with a prompt of exactly so many tokens."""

    @pytest.mark.parametrize(
        ("beside", "asked", "granted", "action"),
        [(16, 16, 16, "none"), (15, 16, 15, "clamped"), (1, 1, 1, "none"), (1, None, 1, "none")],
    )
    def test_prompt_and_output_fill_the_window_and_no_more(
        self, chat: Chat, reference: Reference, beside: int, asked: int | None, granted: int, action: str
    ) -> None:
        messages = reference.filled([said("user", 1)], 1_024 - beside)
        response = chat(messages=messages, max_tokens=asked)
        told = response.json()
        assert told["usage"]["prompt_tokens"] == 1_024 - beside
        assert told["usage"]["completion_tokens"] == granted
        assert told["budget"]["action"] == response.headers["x-budget-action"] == action
        assert told["budget"]["clamped_from"] == (asked if action == "clamped" else None)
        assert response.headers["x-budget-max-output-tokens"] == str(granted)

    def test_one_token_over_is_refused_with_all_figures_where_output_is_not_clamped(
        self, serve: Serve, reference: Reference
    ) -> None:
        client = serve(output_policy="reject")
        messages = reference.filled([said("user", 1)], 1_024 - 15)
        response = client.post(CHAT, json=body(messages=messages, max_tokens=16))
        refused(response, "context_length_exceeded", 1_024, 1_024 - 15, 16)

    def test_history_gives_way_before_output_is_clamped(self, chat: Chat, reference: Reference) -> None:
        messages = reference.filled([*[said("user", 20), said("assistant", 20)] * 3, said("user", 1)], 1_009)
        told = chat(messages=messages, max_tokens=16, truncation="auto").json()
        assert told["budget"]["action"] == "truncated" and told["budget"]["dropped_messages"] == 2
        assert told["usage"]["completion_tokens"] == 16

    @pytest.mark.parametrize("truncation", ["disabled", "auto"])
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("over", [0, 1])
    def test_a_prompt_as_long_as_the_window_is_refused_before_the_engine_sees_it(
        self, chat: Chat, engine: Sized, reference: Reference, over: int, stream: bool, truncation: str
    ) -> None:
        messages = reference.filled([said("user", 1)], 1_024 + over)
        fields = {"max_tokens": 1, "stream": stream, "truncation": truncation}
        for more in ({}, {"truncate_prompt_tokens": 1_024}):
            response = chat(messages=messages, **fields, **more)
            refused(response, "context_length_exceeded", 1_024, 1_024 + over, 1)
        assert engine.started == []
        assert chat().status_code == 200

    def test_an_explicit_length_beats_the_operators_default(self, serve: Serve) -> None:
        client = serve(default_output_tokens=32)
        assert client.post(CHAT, json=body(max_tokens=None)).json()["usage"]["completion_tokens"] == 32
        for field in ("max_tokens", "max_completion_tokens"):
            told = client.post(CHAT, json=body(**{"max_tokens": None, field: 64, "ignore_eos": True})).json()
            assert told["usage"]["completion_tokens"] == 64
            assert told["choices"][0]["finish_reason"] == "length"
            assert told["budget"]["action"] == "none"

    def test_only_an_operators_cap_lowers_an_explicit_length_and_says_so(self, serve: Serve) -> None:
        clamping, rejecting = serve(max_output_tokens=50), serve(max_output_tokens=50, output_policy="reject")
        response = clamping.post(CHAT, json=body(max_tokens=64))
        assert response.json()["usage"]["completion_tokens"] == 50
        assert response.json()["budget"]["clamped_from"] == 64
        assert response.headers["x-budget-action"] == "clamped"
        refusal = rejecting.post(CHAT, json=body(max_tokens=64))
        refused(refusal, "output_budget_exceeded", 50, 64, 1_024, param="max_tokens")

    def test_an_operators_input_limit_is_told_as_such(self, serve: Serve, reference: Reference) -> None:
        client = serve(max_input_tokens=100)
        fits, over = (reference.filled([said("user", 1)], size) for size in (100, 101))
        assert client.post(CHAT, json=body(messages=fits)).status_code == 200
        response = client.post(CHAT, json=body(messages=over))
        refused(response, "input_budget_exceeded", 100, 101, 4, 1_024)

    def test_what_the_cache_can_never_hold_is_refused(
        self, chat: Chat, engine: Sized, reference: Reference
    ) -> None:
        engine.cache = 512
        messages = reference.filled([said("user", 1)], 312)
        assert chat(messages=messages, max_tokens=100, n=2).status_code == 200
        response = chat(messages=messages, max_tokens=101, n=2)
        refused(response, "output_budget_exceeded", 512, 312, 101, 514, param="n")
        assert len(engine.started) == 1


def test_an_answer_takes_as_long_streamed_as_whole_and_its_first_token_comes_out_of_prefill(
    chat: Chat, server: Running, engine: Sized
) -> None:
    """Prefill of 0.8 s, then 25 tokens a second: the first of 180 at 0.84 s, the last at 8 s."""
    pauses: list[Step] = [0.04, "word "]
    for _ in range(2):
        engine.script(0.84, "word ", *pauses * 179)

    def streamed() -> tuple[float, float]:
        began, first = time.monotonic(), 0.0
        with (
            server.client() as client,
            client.stream("POST", CHAT, json=body(max_tokens=180, stream=True)) as response,
        ):
            for line in response.iter_lines():
                if '"content"' in line:
                    first = first or time.monotonic() - began
        return first, time.monotonic() - began

    def whole() -> float:
        began = time.monotonic()
        assert chat(max_tokens=180).json()["usage"]["completion_tokens"] == 180
        return time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        stream, total = pool.submit(streamed), pool.submit(whole)
    first, last = stream.result()
    # Never earlier; how much later says only how busy the machine is.
    assert 0.8 <= first < 4
    assert 7.9 <= last < 20 and 7.9 <= total.result() < 20


def _answered(
    client: httpx.Client, request: dict[str, Any], *, stream: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Usage and budget of an answer, from its body or from its stream's last chunk."""
    if not stream:
        told = client.post(CHAT, json=request).json()
        return told["usage"], told["budget"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    last = read(client.post(CHAT, json={**request, **options})).objects[-1]
    return last["usage"], last["budget"]


def _without_oldest(messages: list[Message], dropped: int) -> list[Message]:
    """The messages when so many are left out behind the instructions."""
    head = sum(1 for message in messages if message["role"] in ("system", "developer"))
    return [*messages[:head], *messages[head + dropped :]]


def _with_start_token(model: Path, folder: Path) -> Path:
    """The model's tokenizer and template, both of which begin a text with a start token."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    start = "<|endoftext|>"
    tokenizer.post_processor = TemplateProcessing(single=f"{start} $A", special_tokens=[(start, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": start}))
    template = (model / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text("{{ bos_token }}" + template)
    (folder / "config.json").write_text((model / "config.json").read_text())
    return folder
