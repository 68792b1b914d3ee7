"""What a request demands of its answer: text of a certain form, tool calls, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping

from service.chat.calls import CallList, NamedCall
from service.chat.format import (
    arguments_constraint,
    call_constraint,
    format_constraint,
    structured_constraint,
)
from service.chat.request import ChatRequest
from service.engine.protocol import CallPlan, CallReader, Constraint, Engine
from service.errors import InvalidValue, Unsupported

# Fields that forbid tokens or ends which a constraint may need: between them nothing might be left to choose.
AT_ODDS: Mapping[str, str] = {
    "ignore_eos": "the text ends where its form does",
    "min_tokens": "the text ends where its form does",
    "allowed_token_ids": "the form decides about tokens",
    "bad_words": "the form decides about tokens",
}


async def call_plan(request: ChatRequest, engine: Engine, tenant: str, *, shows_tools: bool) -> CallPlan:
    """How the answer's calls are read, and what its text is held to.

    Raises:
        InvalidValue: it asks for what cannot be, naming the field. Overloaded, EngineUnavailable: see
            `Engine.check_constraint`.
    """
    formats = [format_constraint(request.response_format), structured_constraint(request.structured_outputs)]
    wanted = [constraint for constraint in formats if constraint is not None]
    if len(wanted) > 1:
        raise InvalidValue(
            "response_format and structured_outputs both constrain the answer; keep one of them.",
            param="structured_outputs",
        )
    plan = _calls(request, engine, shows_tools=shows_tools)
    if plan.readers and wanted:
        name = wanted[0].field.partition(".")[0]
        raise InvalidValue(
            f"{name} cannot be kept to in an answer that may call tools; leave it out, "
            "or set tool_choice to none.",
            param=name,
        )
    if wanted:
        plan = CallPlan((), wanted[0])
    if plan.constraint is not None:
        _refuse_at_odds(request, plan.constraint)
        await _check(request, engine, plan.constraint, tenant)
    return plan


def _calls(request: ChatRequest, engine: Engine, *, shows_tools: bool) -> CallPlan:
    tools, choice, n = request.offered, request.choice, request.n or 1
    parallel = request.parallel_tool_calls is not False
    if not tools:
        return CallPlan(())
    if choice.forced:
        names = [tool["function"]["name"] for tool in tools]
        readers: list[CallReader] = [
            NamedCall(choice.name) if choice.mode == "named" else CallList(names) for _ in range(n)
        ]
        return CallPlan(readers, call_constraint(tools, choice, parallel=parallel))
    if not shows_tools:
        raise Unsupported(
            "This model's chat template has no place for tools, so it cannot choose one by itself; set "
            "tool_choice to required, or name a function.",
            param="tools",
        )
    if engine.facts.tool_parser is None:
        raise Unsupported(
            "This service does not know how its model writes tool calls: its operator can name a parser in "
            "TWOPHASE_TOOL_PARSER. Set tool_choice to required, or name a function; that works without.",
            param="tool_choice",
        )
    return engine.plan_calls(tools, n, parallel=parallel, stream=bool(request.stream))


def _refuse_at_odds(request: ChatRequest, constraint: Constraint) -> None:
    for name, why in AT_ODDS.items():
        if getattr(request, name):
            raise InvalidValue(
                f"{name} cannot be combined with {constraint.field}: {why}.",
                param=name,
            )


async def _check(request: ChatRequest, engine: Engine, constraint: Constraint, tenant: str) -> None:
    try:
        await engine.check_constraint(constraint, tenant)
    except InvalidValue:
        if constraint.field == "tools":  # which of them is it?
            for at in range(len(request.offered)):
                await engine.check_constraint(arguments_constraint(request.offered, at), tenant)
        raise
