"""Before the first request: how this template wants its messages, and whether its prompts go piece by piece.

Both are found out by trying, on the model's own template and tokenizer, with conversations made up here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tokenizers import Tokenizer

from service.errors import InvalidValue
from service.prompt.layout import runs_of
from service.prompt.messages import Form, Message, Reader
from service.prompt.piecewise import Piecewise
from service.prompt.prompt import RenderOptions
from service.prompt.sandbox import RenderTooLong
from service.prompt.template import ChatTemplate, TemplateUnavailable
from service.prompt.traced import Origin, spans_of

LIMIT_S = 2.0
CONVERSATIONS = 24
WORDS = (
    *("word", "Ünïcode", "東京", "🦊", "def f(x):\n    return x", "3.14", "https://a.b/c?d=e"),
    *("don't", "e\u0301", " ", "  ", "\n", "\n\n", "\t", "-", "<", ">", "|", "_", "'", "x" * 40),
)
PARTS = ("first part", "second part")
ASKED: Message = {"role": "user", "content": "How deep is it?"}
CALL: dict[str, Any] = {"name": "sounding", "arguments": json.dumps({"place": "Reykjavik"})}
CALLED: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "sounding1", "type": "function", "function": CALL}],
}
TOOL = {"type": "function", "function": {"name": CALL["name"], "description": "Depth.", "parameters": {}}}


def form_of(template: ChatTemplate) -> Form:
    """The form of messages in which this template shows all that it can."""
    choices = product((False, True), repeat=2)
    forms = (Form(arguments_as_text=text, null_beside_calls=null) for null, text in choices)
    form = next((form for form in forms if _shows_calls(template.read_by(Reader(form)))), Form())
    with_parts = {
        "system": [_in_parts("system"), ASKED],
        "user": [_in_parts("user")],
        "assistant": [ASKED, _in_parts("assistant"), ASKED],
        "tool": [ASKED, CALLED, {**_in_parts("tool"), "tool_call_id": "sounding1"}],
    }
    every = template.read_by(Reader(replace(form, roles_with_parts=frozenset(with_parts))))
    takers = (role for role, messages in with_parts.items() if _takes_parts(every, role, messages))
    return replace(form, roles_with_parts=frozenset(takers))


def holds_piecewise(template: ChatTemplate, piecewise: Piecewise, tokenizer: Tokenizer) -> bool:
    """Whether pieces give the ids of the whole text, in each of the conversations tried that is accepted."""
    chance = random.Random(0)
    texts = (_rendered(template, _conversation(chance)) for _ in range(CONVERSATIONS))
    accepted = [text for text in texts if text is not None]
    return bool(accepted) and all(
        _ids(piecewise, text) == tokenizer.encode(str.__str__(text), add_special_tokens=False).ids
        for text in accepted
    )


def shows_tools(template: ChatTemplate) -> bool:
    """Whether the template tells the model of the tools there are."""
    return CALL["name"] in (_rendered(template, [ASKED], [TOOL]) or "")


def _shows_calls(template: ChatTemplate) -> bool:
    result = {"role": "tool", "tool_call_id": "sounding1", "name": CALL["name"], "content": "4 m"}
    text = _rendered(template, [ASKED, CALLED, result], [TOOL])
    shown = " ".join(_texts(text, Origin(1, "tool_calls")))
    return CALL["name"] in shown and "Reykjavik" in shown and "None" not in (text or "")


def _takes_parts(template: ChatTemplate, role: str, messages: Sequence[Message]) -> bool:
    index = next(
        at for at, message in enumerate(messages) if message["role"] == role and message is not ASKED
    )
    return set(PARTS) <= set(_texts(_rendered(template, messages), Origin(index, "content")))


def _in_parts(role: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": part} for part in PARTS]}


def _texts(text: str | None, origin: Origin) -> list[str]:
    return [text[start:end] for start, end, of in spans_of(text or "") if text and of == origin]


def _rendered(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Message] | None = None
) -> str | None:
    try:
        return template.render(messages, RenderOptions(tools=tools), LIMIT_S)
    except RenderTooLong:
        raise TemplateUnavailable("the chat template takes too long to render a short conversation") from None
    except InvalidValue:
        return None


def _conversation(chance: random.Random) -> list[Message]:
    turns = [{"role": "system", "content": _words(chance)}] if chance.random() < 0.5 else []
    for _ in range(chance.randint(0, 3)):
        turns += [{"role": role, "content": _words(chance)} for role in ("user", "assistant")]
    return [*turns, {"role": "user", "content": _words(chance)}]


def _words(chance: random.Random) -> str:
    return chance.choice(("", " ")).join(chance.choices(WORDS, k=chance.randint(0, 30)))


def _ids(piecewise: Piecewise, text: str) -> list[int]:
    plan = piecewise.plan(text, runs_of(text), "")
    piecewise.fill(plan)
    return plan.assembled()[0]
