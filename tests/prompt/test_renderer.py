"""The front of the room: on the event loop and off it, loading, and text that is no conversation."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from service.errors import InvalidTemplate, InvalidValue
from service.prompt import Prompt, Renderer, RenderOptions, TemplateUnavailable
from service.prompt.renderer import LOOP_UNKNOWN, LOOP_WEIGHT
from tests.prompt.conftest import Model
from tests.prompt.small import CHATML, byte_level, renderer, transformers_of
from tests.prompt.talks import Message

HELLO: Message = {"role": "user", "content": "Hello"}
LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


async def meanwhile(work: Any) -> tuple[Any, int]:
    """What `work` gives or raises, and how often the loop came round before that."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return task.exception() or task.result(), turns


async def test_small_prompts_are_made_at_once() -> None:
    result, turns = await meanwhile(renderer().render([HELLO], RenderOptions()))
    assert isinstance(result, Prompt)
    assert turns < 3


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "word " * LOOP_WEIGHT}],
        [{"role": "user", "content": "word " * LOOP_UNKNOWN}],
        [HELLO] * 2500,
        [{"role": "user", "content": [{"type": "text", "text": "word"}] * 5000}],
    ],
    ids=["a large text", "much that is unknown", "many messages", "many parts"],
)
async def test_large_prompts_are_made_while_the_loop_goes_on(messages: list[Message]) -> None:
    ours = renderer()
    result, turns = await meanwhile(ours.render(messages, RenderOptions()))
    assert isinstance(result, Prompt)
    assert turns > 3
    assert result == ours.render_blocking(messages, RenderOptions())


async def test_a_template_that_never_ends_is_refused_while_the_loop_goes_on() -> None:
    ours = renderer(template="{% if messages[0].content == 'for ever' %}" + LOOPS + "{% endif %}")
    result, turns = await meanwhile(ours.render([{"role": "user", "content": "for ever"}], RenderOptions()))
    assert isinstance(result, InvalidTemplate)
    assert result.param == "messages"
    assert turns > 3


async def test_a_known_history_is_not_tokenized_again() -> None:
    ours = renderer()
    history = [{"role": "user", "content": "word " * LOOP_UNKNOWN}]
    await ours.render(history, RenderOptions())
    _, turns = await meanwhile(ours.render([*history, HELLO], RenderOptions()))
    assert turns < 3


async def test_another_groups_history_is() -> None:
    ours = renderer()
    history = [{"role": "user", "content": "word " * LOOP_UNKNOWN}]
    await ours.render(history, RenderOptions(cache_group="a"))
    used = ours.cache_used_bytes
    _, turns = await meanwhile(ours.render(history, RenderOptions(cache_group="b")))
    assert turns > 3
    assert ours.cache_used_bytes > used


async def test_many_threads_get_the_same_prompts() -> None:
    ours = renderer(cache_bytes=20_000)
    talks = [[{"role": "user", "content": f"{number} " * 9000}] for number in range(8)]
    prompts = await asyncio.gather(*(ours.render(talk, RenderOptions()) for talk in talks * 3))
    assert prompts == [ours.render_blocking(talk, RenderOptions()) for talk in talks * 3]
    assert ours.cache_used_bytes <= 20_000


async def test_closing_lets_the_threads_go() -> None:
    others = set(threading.enumerate())
    ours = renderer()
    await ours.render([{"role": "user", "content": "word " * LOOP_WEIGHT}], RenderOptions())
    ours.close()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("prompt"):
            thread.join(5)
            assert not thread.is_alive()


async def test_plain_text_is_tokenized_as_the_tokenizer_does(model: Model) -> None:
    text = f"How deep?{model.tokenizer.eos_token} 東京"
    for special in (True, False):
        ids = await model.renderer.tokenize(text, add_special_tokens=special)
        assert ids == model.tokenizer.encode(text, add_special_tokens=special)
    assert await model.renderer.detokenize(ids) == model.text(ids)
    assert model.renderer.token_strings(ids) == model.tokenizer.convert_ids_to_tokens(ids)


async def test_large_text_is_tokenized_off_the_loop(smollm2: Model) -> None:
    ids, turns = await meanwhile(smollm2.renderer.tokenize("word " * 20_000))
    assert turns > 3
    text, turns = await meanwhile(smollm2.renderer.detokenize(ids))
    assert turns > 3
    assert text == "word " * 20_000


@pytest.mark.parametrize("ids", [[-1], [0, 10**9], [49_152]])
async def test_ids_the_model_does_not_have_are_refused(smollm2: Model, ids: list[int]) -> None:
    with pytest.raises(InvalidValue) as caught:
        await smollm2.renderer.detokenize(ids)
    assert caught.value.param == "tokens"


async def test_half_a_surrogate_pair_is_refused(smollm2: Model) -> None:
    with pytest.raises(InvalidValue) as caught:
        await smollm2.renderer.tokenize("half \ud83e")
    assert caught.value.param == "prompt"


def saved(folder: Path, template: str | None = CHATML) -> str:
    tokenizer = transformers_of(byte_level(), template or "")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_model_folder_is_loaded(tmp_path: Path) -> None:
    ours = Renderer.load(saved(tmp_path))
    assert ours.render_blocking([HELLO], RenderOptions()).text.startswith("<|begin|><|user|>user\nHello")


def test_a_template_file_takes_the_place_of_the_models(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}!")
    ours = Renderer.load(saved(tmp_path / "model"), chat_template=file)
    assert ours.render_blocking([HELLO], RenderOptions()).text == "Hello!"


def test_the_tokenizer_may_be_another_models(tmp_path: Path) -> None:
    ours = Renderer.load("no such model", tokenizer=saved(tmp_path))
    assert ours.is_piecewise


def test_a_tokenizer_that_cuts_and_fills_texts_does_neither_here(tmp_path: Path) -> None:
    tokenizer = byte_level(markers=("<|pad|>", "<|begin|>", "<|user|>", AddedToken("<|end|>")))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64, pad_token="<|pad|>")
    transformers_of(tokenizer).save_pretrained(tmp_path)
    ours = Renderer.load(str(tmp_path))
    prompt = ours.render_blocking([{"role": "user", "content": "word " * 50}], RenderOptions())
    assert prompt.text.count("word") == 50
    assert asyncio.run(ours.detokenize(prompt.token_ids)) == prompt.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": "/nowhere/at-all"}, "the tokenizer of /nowhere/at-all cannot be loaded"),
        ({"chat_template": Path("/nowhere/at-all.jinja")}, "at-all.jinja cannot be read"),
        ({"chat_template": "broken"}, "not valid Jinja, line 1"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_words(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    if arguments.get("chat_template") == "broken":
        arguments["chat_template"] = broken
    with pytest.raises(TemplateUnavailable, match=sentence):
        Renderer.load(**{"model": saved(tmp_path / "model"), **arguments})


def test_a_template_that_never_ends_is_told_at_the_start() -> None:
    with pytest.raises(TemplateUnavailable, match="too long"):
        renderer(template=LOOPS)


def test_a_model_without_a_template_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(TemplateUnavailable, match="TWOPHASE_CHAT_TEMPLATE"):
        Renderer.load(saved(tmp_path, None))
