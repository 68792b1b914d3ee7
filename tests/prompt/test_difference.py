"""Why a prefix is no longer cached: conversations that part in one known way, on real templates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.prompt import Renderer
from service.prompt.difference import Miss, find_miss, first_difference
from service.prompt.sent import Sent
from tests.prompt.conftest import Model

Message = dict[str, str]

STORY = "Once there was a ferry that crossed the fjord four times a day, and a keeper who counted waves. " * 4
BLOCK = 16


def say(*contents: str, system: str | None = "You are brief, and you never guess.") -> list[Message]:
    """Alternating turns, the user's first, after a system message."""
    roles = ("user", "assistant")
    turns = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return [{"role": "system", "content": system}, *turns] if system is not None else turns


def turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def replace_end(old: Sent, tokens: int) -> Sent:
    """Its first tokens alone, as a prompt."""
    return Sent("group", "owner", old.ids[:tokens], min(tokens, old.prompt_tokens), old.segments, old.roles)


def sent(model: Model, messages: list[Message], reply: str | None = None, **options: Any) -> Sent:
    """A conversation as it was sent, with the tokens of a reply when there is one."""
    made = Sent.of(
        model.prompt(messages, **options),
        [message["role"] for message in messages],
        group="group",
        owner="owner",
    )
    return made if reply is None else made.answered(model.tokenizer.encode(reply, add_special_tokens=False))


def whole_blocks(new: Sent, *before: Sent) -> int:
    """What a prefix cache of whole blocks gives."""
    common = max(min(first_difference(new.ids, old.ids), old.computed_tokens) for old in before)
    return min(common, new.prompt_tokens - 1) // BLOCK * BLOCK


def missed(model: Model, new: Sent, *before: Sent, dropped: bool = False) -> Miss | None:
    """Why `new` is not wholly cached after `before`, the latest first."""
    spelling = model.renderer.vocabulary.bytes_by_id
    return find_miss(new, before, whole_blocks(new, *before), spelling, dropped=dropped)


def found(model: Model, new: Sent, *before: Sent, dropped: bool = False) -> tuple[str, int | None]:
    """Cause and message, after the index has been checked against the ids."""
    miss = missed(model, new, *before, dropped=dropped)
    assert miss is not None
    likely = before[0]
    assert (new.ids[: miss.index] == likely.ids[: miss.index]).all()
    if miss.cause != "block boundary":
        assert new.ids[miss.index] != likely.ids[miss.index]
    return miss.cause, miss.message


BEFORE = say(STORY, "Two keepers.", f"And then? {STORY}")
REPLY = "The light went out.<|im_end|>"
CHANGED = {
    "the first question edited": (
        say(STORY.replace("four", "five"), "Two keepers.", f"And then? {STORY}"),
        ("message edited", 1),
    ),
    "an answer edited": (say(STORY, "Two keepers!", f"And then? {STORY}"), ("message edited", 2)),
    "the last question longer": (
        say(STORY, "Two keepers.", f"And then? {STORY} Tell me all."),
        ("message edited", 3),
    ),
    "the reply rewritten": ([*BEFORE, turn("assistant", "It was dark.")], ("message edited", 4)),
    "a message put in first": ([BEFORE[0], turn("user", "Hello."), *BEFORE[1:]], ("message inserted", 1)),
    "a message put in later": (
        [*BEFORE[:2], turn("user", "Wait."), *BEFORE[2:]],
        ("message inserted", 2),
    ),
    "a message put in before the reply": (
        [*BEFORE, turn("user", "Wait."), turn("assistant", "The light went out."), turn("user", "And?")],
        ("message inserted", 4),
    ),
    "the oldest turn left out": ([BEFORE[0], *BEFORE[3:]], ("history truncated", 1)),
    "the oldest turn left out, and on": (
        [BEFORE[0], *BEFORE[3:], turn("assistant", "The light went out."), turn("user", "And?")],
        ("history truncated", 1),
    ),
    "the newest turns left out": ([*BEFORE[:2], turn("user", "Who?")], ("never seen", 2)),
    "another system prompt": ([turn("system", "You are kind."), *BEFORE[1:]], ("system prompt changed", 0)),
    "no system prompt": (BEFORE[1:], ("system prompt changed", 0)),
    "another conversation": (say("What is a fjord?"), ("never seen", 1)),
    "another conversation of another kind": (
        say("What is a fjord?", system="Answer in French."),
        ("never seen", 0),
    ),
    "a question in place of the reply": ([*BEFORE, turn("user", "Hello?")], ("never seen", 4)),
}


@pytest.mark.parametrize("what", CHANGED)
def test_each_change_has_its_cause_and_its_message(smollm2: Model, what: str) -> None:
    now, cause_and_message = CHANGED[what]
    assert found(smollm2, sent(smollm2, now), sent(smollm2, BEFORE, REPLY)) == cause_and_message


def test_a_call_that_comes_back_with_other_spaces_is_no_edited_message(qwen3: Model) -> None:
    asked = [turn("user", f"{STORY} How is the weather in Oslo?")]
    old = sent(qwen3, asked, '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo"}}\n</tool_call>')
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    back: Any = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", **call}]}
    assert found(qwen3, sent(qwen3, [*asked, back]), old) == ("reply re-tokenized", 1)
    call["function"] = {"name": "weather", "arguments": {"city": "Rome"}}
    back = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", **call}]}
    assert found(qwen3, sent(qwen3, [*asked, back]), old)[0] == "message edited"


def test_a_reply_that_went_on_from_its_own_message_is_known_again(smollm2: Model) -> None:
    begun = [turn("user", STORY), turn("assistant", "The light")]
    old = sent(smollm2, begun, " went out.", add_generation_prompt=False, continue_final_message=True)
    new = sent(smollm2, [begun[0], turn("assistant", "The light  went out."), turn("user", "And?")])
    assert found(smollm2, new, old) == ("reply re-tokenized", 1)
    new = sent(smollm2, [begun[0], turn("assistant", "The light had gone."), turn("user", "And?")])
    assert found(smollm2, new, old) == ("message edited", 1)


def test_a_time_stamp_in_a_system_prompt_is_found(smollm2: Model) -> None:
    clocks = [f"You are an assistant. It is {time} now. Be brief." for time in ("10:15:01", "10:15:09")]
    old, new = (sent(smollm2, say(word, system=clock)) for word, clock in zip("ab", clocks, strict=True))
    miss = missed(smollm2, new, old)
    assert miss is not None
    assert (miss.cause, miss.message) == ("system prompt changed", 0)
    texts = miss.texts(smollm2.renderer.vocabulary.bytes_by_id)
    assert (texts["text_before"] or "").startswith("1 now.")
    assert (texts["text_after"] or "").startswith("9 now.")


def test_a_system_prompt_where_there_was_none_is_a_changed_one(smollm2: Model) -> None:
    assert found(smollm2, sent(smollm2, BEFORE), sent(smollm2, BEFORE[1:])) == ("system prompt changed", 0)


def test_a_conversation_that_goes_on_misses_nothing_but_its_last_block(smollm2: Model) -> None:
    old = sent(smollm2, BEFORE, REPLY)
    now = [*BEFORE, turn("assistant", "The light went out."), turn("user", "And?")]
    new = sent(smollm2, now)
    miss = missed(smollm2, new, old)
    assert first_difference(new.ids, old.ids) == len(old.ids)
    if old.computed_tokens % BLOCK:
        assert miss is not None
        assert (miss.cause, miss.index) == ("block boundary", old.computed_tokens // BLOCK * BLOCK)
    whole = replace_end(old, old.computed_tokens // BLOCK * BLOCK)
    assert missed(smollm2, new, whole) is None


def test_the_last_token_is_always_computed_and_no_miss(smollm2: Model) -> None:
    spelling = smollm2.renderer.vocabulary.bytes_by_id
    old = sent(smollm2, BEFORE)
    new = replace_end(old, 5 * BLOCK + 1)
    assert find_miss(new, [old], 5 * BLOCK, spelling) is None
    new = replace_end(old, 5 * BLOCK)
    miss = find_miss(new, [old], 4 * BLOCK, spelling)
    assert miss is not None and (miss.cause, miss.index) == ("block boundary", 4 * BLOCK)


def test_a_reply_that_comes_back_as_other_tokens_is_told_from_one_that_was_edited(smollm2: Model) -> None:
    encode, spelling = smollm2.tokenizer.encode, smollm2.renderer.vocabulary.bytes_by_id
    said = [token for piece in ("The lig", "ht we", "nt out.") for token in encode(piece)]
    old = sent(smollm2, BEFORE).answered([*said, *encode("<|im_end|>")])
    for reply, cause in (
        ("The light went out.", "reply re-tokenized"),
        ("The light went", "reply re-tokenized"),  # cut by a stop string, or trimmed
        ("The night went out.", "message edited"),
    ):
        miss = missed(smollm2, sent(smollm2, [*BEFORE, turn("assistant", reply), turn("user", "And?")]), old)
        assert miss is not None and (miss.cause, miss.message) == (cause, 4)
        assert (miss.texts(spelling)["text_before"] or "").startswith(" lig")


def test_a_reply_that_melts_into_the_words_before_it_is_no_changed_template(smollm2: Model) -> None:
    old = sent(smollm2, BEFORE).answered(smollm2.tokenizer.encode("\n\nThe light went out.<|im_end|>"))
    new = sent(smollm2, [*BEFORE, turn("assistant", "\n\nThe light went out.")])
    miss = missed(smollm2, new, old)
    assert miss is not None and miss.index < old.prompt_tokens
    assert (miss.cause, miss.message) == ("reply re-tokenized", 4)


def test_history_that_the_service_cut_is_truncated_even_if_nothing_else_remains(smollm2: Model) -> None:
    old, new = sent(smollm2, say(STORY), REPLY), sent(smollm2, say("And what is a fjord?"))
    assert found(smollm2, new, old, dropped=True) == ("history truncated", 1)
    assert found(smollm2, new, old) == ("never seen", 1)


TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Depth.", "parameters": {}}}
    for name in ("sounding", "weather")
]


@pytest.mark.parametrize("before", [None, TOOLS[:1], TOOLS])
@pytest.mark.parametrize("system", [None, "You are brief."])
def test_other_tools_are_other_tools_whatever_the_template_writes_around_them(
    qwen3: Model, before: list[dict[str, Any]] | None, system: str | None
) -> None:
    messages = say(STORY, system=system)
    old, new = sent(qwen3, messages, tools=before), sent(qwen3, messages, tools=TOOLS[::-1])
    assert found(qwen3, new, old)[0] == "tools changed"
    assert found(qwen3, old, new)[0] == "tools changed"


def test_another_template_argument_is_a_changed_template(qwen3: Model) -> None:
    old = sent(qwen3, BEFORE)
    new = sent(qwen3, BEFORE, template_kwargs={"enable_thinking": False})
    assert missed(qwen3, new, old) is None or found(qwen3, new, old)[0] == "block boundary"
    new = sent(qwen3, [*BEFORE, turn("assistant", "a"), turn("user", "b")])
    thought = sent(qwen3, BEFORE, template_kwargs={"enable_thinking": False}).answered([1, 2, 3])
    assert found(qwen3, new, thought) == ("template changed", 4)


DATED = """{{ '<|im_start|>system\n' }}Today is {{ date }}.
{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
{% endfor %}{{ '<|im_start|>assistant\n' }}"""


def test_a_date_that_a_template_writes_is_a_changed_template(
    smollm2: Model, embedded_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "dated.jinja").write_text(DATED)
    dated = Renderer.load(str(embedded_model), chat_template=tmp_path / "dated.jinja")
    model = replace(smollm2, renderer=dated)
    old, new = (sent(model, BEFORE, template_kwargs={"date": f"{day} July"}) for day in ("26", "27"))
    assert found(model, new, old) == ("template changed", None)


def test_the_text_before_is_shown_only_to_who_sent_it(smollm2: Model) -> None:
    spelling = smollm2.renderer.vocabulary.bytes_by_id
    old, new = sent(smollm2, BEFORE), sent(smollm2, CHANGED["an answer edited"][0])
    own = missed(smollm2, new, old)
    old.owner = "partner"
    partners = missed(smollm2, new, old)
    assert own is not None and partners is not None
    assert own.texts(spelling)["text_before"]
    assert partners.texts(spelling)["text_before"] is None
    assert partners.report() == own.report()
    assert "keepers" not in str(own.report())


def test_a_prompt_is_held_against_the_conversation_it_goes_on_from(smollm2: Model) -> None:
    """Others share its system prompt, and one of them is newer."""
    own = sent(smollm2, BEFORE, REPLY)
    others = [sent(smollm2, say(f"Question {number}"), REPLY) for number in range(3)]
    new = sent(smollm2, CHANGED["the oldest turn left out"][0])
    miss = missed(smollm2, new, *others[:2], own, *others[2:])
    assert miss is not None and (miss.cause, miss.message) == ("history truncated", 1)


ids = st.lists(st.integers(0, 3), max_size=40).map(lambda values: np.array(values, np.uint32))


@given(ids, ids)
def test_the_first_difference_is_what_comparing_one_by_one_gives(new: Any, old: Any) -> None:
    same = [a == b for a, b in zip(new, old, strict=False)]
    assert first_difference(new, old) == (same.index(False) if False in same else len(same))


@given(st.data())
def test_one_edited_message_is_named_wherever_it_stands(smollm2: Model, data: st.DataObject) -> None:
    contents = [f"{number}. {STORY[: 40 + 7 * number]}" for number in range(data.draw(st.integers(2, 7)))]
    at = data.draw(st.integers(0, len(contents) - 1))
    place = data.draw(st.integers(4, 30))
    edited = list(contents)
    edited[at] = edited[at][:place] + "#" + edited[at][place:]
    old, new = sent(smollm2, say(*contents), REPLY), sent(smollm2, say(*edited))
    assert found(smollm2, new, old) == ("message edited", at + 1)


@given(st.data())
def test_left_out_turns_are_history_truncated_at_the_first_that_remains(
    smollm2: Model, data: st.DataObject
) -> None:
    contents = [f"{number}. {STORY[: 20 + 7 * number]}" for number in range(data.draw(st.integers(3, 9)))]
    gone = data.draw(st.integers(1, len(contents) - 1))
    system = data.draw(st.sampled_from([None, "You are brief, and you never guess."]))
    old = sent(smollm2, say(*contents, system=system), REPLY)
    kept = say(*contents, system=None)[gone:]
    new = sent(smollm2, [*say(system=system), *kept] if system else kept)
    assert found(smollm2, new, old) == ("history truncated", 1 if system else 0)
