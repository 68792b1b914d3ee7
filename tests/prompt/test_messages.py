"""What becomes of a caller's messages before the template sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.errors import InvalidTemplate, InvalidValue
from service.prompt import Prompt, RenderOptions
from tests.prompt.conftest import Model
from tests.prompt.small import CHATML, renderer
from tests.prompt.talks import Message

HELLO: Message = {"role": "user", "content": "Hello"}
OPEN: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
AS_PARTS = (
    "{% for m in messages %}{{ '<|user|>' }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '[' + part.text + ']' }}{% endfor %}{% endif %}{% endfor %}"
)


def calling(arguments: str, content: str | None = None) -> Message:
    function = {"name": "sounding", "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def prompt(*messages: Message, template: str = CHATML, **options: Any) -> Prompt:
    return renderer(template=template).render_blocking(messages, RenderOptions(**options))


def refused(*messages: Message, template: str = CHATML, **options: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        prompt(*messages, template=template, **options)
    return caught.value


def test_developer_is_system_under_its_newer_name(model: Model) -> None:
    said = [{"role": "developer", "content": "Reply with PLUM."}, HELLO]
    as_system = [{"role": "system", "content": "Reply with PLUM."}, HELLO]
    assert model.prompt(said) == model.prompt(as_system)


def test_text_parts_are_one_text_joined_by_line_feeds(smollm2: Model) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert smollm2.prompt([{"role": "user", "content": parts}]) == smollm2.prompt(
        [{"role": "user", "content": "one\ntwo"}]
    )


def test_a_template_that_takes_parts_itself_gets_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt({"role": "user", "content": parts}, template=AS_PARTS).text == "<|user|>[one][two]"
    assert prompt({"role": "user", "content": "one"}, template=AS_PARTS).text == "<|user|>one"


def test_whether_parts_are_taken_is_known_for_each_role(load: Any) -> None:
    gemma = load("gemma-3")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    # Its template takes a user's parts one by one, but of a system message only the first.
    text = gemma.prompt([{"role": "system", "content": parts}, {"role": "user", "content": parts}]).text
    assert "one\ntwo" in text
    assert "onetwo" in text


def test_null_beside_tool_calls_is_the_empty_text(model: Model) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "4 m"}
    messages = [HELLO, calling("{}"), result, {"role": "assistant", "content": "4 m."}, HELLO]
    if model.name == "gemma-3":
        with pytest.raises(InvalidTemplate, match="Conversation roles must alternate"):
            model.prompt(messages)
        return
    assert "None" not in model.prompt(messages).text
    if not model.renderer.template.reader.form.null_beside_calls:
        with_empty = [HELLO, calling("{}", ""), *messages[2:]]
        assert model.prompt(messages) == model.prompt(with_empty)


def test_a_template_that_shows_calls_only_beside_null_is_given_null(deepseek: Model) -> None:
    assert "sounding" in deepseek.prompt([HELLO, calling('{"place": "Oslo"}')]).text


def test_arguments_are_given_as_the_object_they_describe(qwen3: Model) -> None:
    text = qwen3.prompt([HELLO, calling('{"place":"Ísafjörður","deep":true}')]).text
    assert '"arguments": {"place": "Ísafjörður", "deep": true}' in text


def test_no_arguments_at_all_are_an_empty_object(qwen3: Model) -> None:
    assert '"arguments": {}' in qwen3.prompt([HELLO, calling("")]).text


def test_what_is_null_is_not_there() -> None:
    template = "{% for m in messages %}{{ m.name is defined }} {{ 'tool_calls' in m }}{% endfor %}"
    assert prompt({**HELLO, "name": None, "tool_calls": None}, template=template).text == "False False"
    assert prompt({**HELLO, "name": "Ada", "tool_calls": []}, template=template).text == "True False"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[1].content"),
        ({"role": "narrator", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": "half \ud83e"}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text", "text": "\udfff"}]}, "messages[1].content"),
        ({"role": "user", "content": "x", "name": "\ud800"}, "messages[1].name"),
        (calling("[1]"), "messages[1].tool_calls[0].function.arguments"),
        (calling("{'a': 1}"), "messages[1].tool_calls[0].function.arguments"),
        (calling("[" * 100_000), "messages[1].tool_calls[0].function.arguments"),
        (calling('{"a": "\\ud800"}'), "messages[1].tool_calls[0]"),
        (calling('{"a":' * 900 + "1" + "}" * 900), "messages[1].tool_calls[0]"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(message: Message, param: str) -> None:
    refusal = refused(HELLO, message)
    assert refusal.param == param
    assert param in refusal.message


def test_no_messages_are_refused() -> None:
    assert refused().param == "messages"


@pytest.mark.parametrize(
    "name",
    ["chat_template", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"]
    + ["documents", "raise_exception", "strftime_now", "range", "eos_token"],
)
def test_template_arguments_that_are_not_the_callers_are_refused(name: str) -> None:
    ours = renderer(specials={"eos_token": "<|end|>"})
    with pytest.raises(InvalidTemplate) as caught:
        ours.render_blocking([HELLO], RenderOptions(template_kwargs={name: "{{ 7*7 }}"}))
    assert caught.value.param == f"chat_template_kwargs.{name}"
    assert caught.value.code == "invalid_template"


def test_the_callers_template_arguments_win_over_the_operators() -> None:
    ours = renderer(template="{{ tone }}, {{ size }}", template_kwargs={"tone": "dry", "size": 2})
    options = RenderOptions(template_kwargs={"tone": "warm"})
    assert ours.render_blocking([HELLO], options).text == "warm, 2"


def test_tools_are_given_to_a_template_of_their_own_if_there_is_one() -> None:
    from service.prompt import Renderer
    from service.prompt.loading import ModelText
    from tests.prompt.small import byte_level

    sources = {"default": "plain", "tool_use": "with {{ tools | length }}"}
    ours = Renderer(ModelText(byte_level(), sources, {}), template_kwargs={})
    assert ours.render_blocking([HELLO], RenderOptions()).text == "plain"
    assert ours.render_blocking([HELLO], RenderOptions(tools=[{}, {}])).text == "with 2"
    assert ours.render_blocking([HELLO], RenderOptions(tools=[])).text == "plain"


def test_the_last_message_is_continued_even_where_an_earlier_one_is_like_it(smollm2: Model) -> None:
    sure = {"role": "user", "content": "Sure?"}
    messages = [
        HELLO,
        {"role": "assistant", "content": "Yes"},
        sure,
        {"role": "assistant", "content": "Yes\n"},
    ]
    text = smollm2.prompt(messages, **OPEN).text
    assert text.endswith("<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nYes\n")


def test_an_empty_last_message_is_continued_from_its_beginning() -> None:
    assert prompt(HELLO, {"role": "assistant", "content": ""}, **OPEN).text.endswith("<|user|>assistant\n")


def test_a_last_message_the_template_trims_is_continued_where_its_text_ends() -> None:
    template = CHATML.replace("message.content", "message.content | trim")
    text = prompt(HELLO, {"role": "assistant", "content": " Yes \n"}, template=template, **OPEN).text
    assert text.endswith("<|user|>assistant\nYes")


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([HELLO, {"role": "assistant", "content": "Yes"}], {**OPEN, "add_generation_prompt": True}),
        ([HELLO], OPEN),
    ],
)
def test_a_continuation_that_contradicts_itself_is_refused(
    messages: list[Message], options: dict[str, Any]
) -> None:
    assert refused(*messages, **options).param == "continue_final_message"


def test_a_continuation_of_what_the_template_leaves_out_is_refused() -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    answer = {"role": "assistant", "content": "Yes"}
    assert refused(HELLO, answer, template=template, **OPEN).param == "continue_final_message"


def test_a_templates_own_refusal_is_told_in_its_words() -> None:
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate.') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    refusal = refused(HELLO, HELLO, template=template)
    assert isinstance(refusal, InvalidTemplate)
    assert refusal.param == "messages"
    assert "Roles must alternate." in refusal.message
    assert prompt(HELLO, HELLO).token_ids


def test_what_a_templates_refusal_says_is_bounded() -> None:
    template = "{% for m in messages %}{{ raise_exception('No: ' ~ m.content) }}{% endfor %}"
    refusal = refused({"role": "user", "content": "x" * 10_000 + "\n"}, template=template)
    assert len(refusal.message) < 400


@pytest.mark.parametrize(
    "broken", ["{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ missing.thing }}"]
)
def test_a_template_that_fails_says_nothing_of_its_insides(broken: str) -> None:
    refusal = refused(HELLO, template=broken)
    assert isinstance(refusal, InvalidTemplate)
    assert refusal.message == "The chat template cannot render these messages."


def test_the_worlds_json_goes_through_unharmed(qwen3: Model) -> None:
    arguments = {"a": [1, 2.5, None, True, {"b": "\N{FOX FACE}"}], "c": {}}
    text = qwen3.prompt([HELLO, calling(json.dumps(arguments))]).text
    assert json.dumps(arguments, ensure_ascii=False) in text
