"""How many chats of one shape fit: the question with its gaps filled, and the answer of the route."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from service.budget.capacity import Cache, Shape, capacity
from service.budget.kv import kv_cost
from service.engine.protocol import Engine

USUAL_PROMPT = 1_024
USUAL_OUTPUT = 256
NO_FORMULA = "the model's configuration does not tell its layers and heads"


def shape_asked(
    context_window: int,
    prompt_tokens: int | None,
    output_tokens: int | None,
    cached_tokens: int | None,
    default_output_tokens: int | None,
) -> Shape:
    """A chat shape; what is not asked for is a usual chat's, made small enough for the window.

    Raises:
        InvalidValue: for counts no chat can have, naming the one.
    """
    if output_tokens is None:
        room = context_window // 2 if prompt_tokens is None else context_window - prompt_tokens
        output_tokens = max(1, min(default_output_tokens or USUAL_OUTPUT, room))
    if prompt_tokens is None:
        prompt_tokens = max(1, cached_tokens or 0, min(USUAL_PROMPT, context_window - output_tokens))
    return Shape(prompt_tokens, output_tokens, cached_tokens or 0)


def capacity_report(engine: Engine, shape: Shape) -> dict[str, Any]:
    """The shape and how many of it fit; null for what neither engine nor configuration tells."""
    facts = engine.facts
    cache = Cache(facts.kv_capacity_tokens, engine.load.kv_used_tokens, facts.block_size)
    cost = kv_cost(facts.model_config, facts.kv_dtype)
    answer = asdict(capacity(shape, cache, facts.context_window, cost))
    if cost is None:
        answer["approximate"] = NO_FORMULA
    if not facts.kv_capacity_tokens:
        answer |= dict.fromkeys(("capacity_tokens", "used_tokens", "chats_now", "chats_idle"))
    return {**asdict(shape), "context_window": facts.context_window, **answer}
