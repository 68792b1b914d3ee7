"""How much the model is to think: what a request may ask for, and what that means to a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.chat.request import ChatRequest
from service.engine.protocol import EngineFacts
from service.errors import Unsupported

SWITCHES = ("enable_thinking", "thinking")  # what templates call it, where thinking can be left out
EFFORT = "reasoning_effort"


def template_arguments(request: ChatRequest, template_text: str) -> Mapping[str, Any]:
    """The request's own arguments for the template, and what its effort adds to them.

    Raises:
        Unsupported: the template has no place for this effort.
    """
    effort, given = request.reasoning_effort, request.chat_template_kwargs or {}
    if effort is None:
        return given
    switches = [name for name in SWITCHES if name in template_text]
    if EFFORT in template_text:
        return {EFFORT: effort, **dict.fromkeys(switches, effort != "none"), **given}
    if effort == "none":  # where thinking cannot be left out, it is not there or always there
        return {**dict.fromkeys(switches[:1], False), **given}
    raise Unsupported(
        f"This model's chat template knows no degrees of thinking; leave {EFFORT} out"
        f"{', or set it to none' if switches else ''}.",
        param=EFFORT,
    )


def check_thinking(request: ChatRequest, facts: EngineFacts) -> None:
    """Raises Unsupported when the request bounds a thinking that nobody can bound, or knows of."""
    if request.reasoning_effort not in (None, "none") and not facts.reasons:
        raise Unsupported(
            "It is not known here how this model thinks: its operator can name a parser in "
            f"TWOPHASE_REASONING_PARSER. Leave {EFFORT} out.",
            param=EFFORT,
        )
    if request.thinking_token_budget is not None and not facts.bounds_thinking:
        raise Unsupported(
            "The thinking of this model cannot be bounded here; leave thinking_token_budget out.",
            param="thinking_token_budget",
        )
