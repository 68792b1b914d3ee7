"""The objects of OpenAI's responses: items of output, and the response around them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from service.chat.reply import Reply
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.encode import reports
from service.web.faces.responses.request import ResponsesRequest
from service.web.faces.said import JsonMap
from service.web.logprobs import logprobs_body

PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


def new_item(kind: str, **fields: Any) -> JsonMap:
    """An item that has just begun."""
    head = {"id": f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
    if kind == "message":
        return {**head, "role": "assistant", "content": []}
    if kind == "reasoning":
        return {**head, "summary": [], "content": []}
    return {**head, "arguments": "", **fields}


def text_part(text: str, logprobs: Sequence[JsonMap] = ()) -> JsonMap:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def thought_part(text: str) -> JsonMap:
    """The content of what was thought."""
    return {"type": "reasoning_text", "text": text}


def ended_item(item: JsonMap, text: str, logprobs: Sequence[JsonMap], *, cut: bool) -> JsonMap:
    """An item with all that it says; `cut`: the limit on output has ended it."""
    status = "incomplete" if cut else "completed"
    if item["type"] == "function_call":
        return {**item, "status": status, "arguments": text}
    part = text_part(text, logprobs) if item["type"] == "message" else thought_part(text)
    return {**item, "status": status, "content": [part]}


def output_items(reply: Reply, choice: Whole) -> list[JsonMap]:
    """All items of a complete answer; only the last one can have been cut."""
    said: list[tuple[JsonMap, str, list[JsonMap]]] = []
    if choice.thought:
        said.append((new_item("reasoning"), choice.thought, []))
    if choice.text or not (choice.calls or choice.thought):
        told = logprobs(reply, choice.logprobs) if choice.logprobs else []
        said.append((new_item("message"), choice.text, told))
    for call in choice.calls:
        said.append((new_item("function_call", call_id=call.id, name=call.name), call.arguments, []))
    cut = [False] * (len(said) - 1) + [choice.finish == "length"]
    return [ended_item(*each, cut=was_cut) for each, was_cut in zip(said, cut, strict=True)]


def logprobs(reply: Reply, tokens: Sequence[Any]) -> list[JsonMap]:
    """Logprobs of text, as chat completions have them."""
    if reply.alphabet is None:
        return []
    entries: list[JsonMap] = logprobs_body(reply.alphabet, tokens)["content"]
    return entries


def message_of(choice: Whole) -> JsonMap:
    """The turn of the assistant's, as the next request has to show it to the model."""
    message: JsonMap = {"role": "assistant", "content": choice.text}
    if choice.thought:
        message["reasoning_content"] = choice.thought
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return message


def response_object(wish: ResponsesRequest, reply: Reply, output: list[JsonMap], status: str) -> JsonMap:
    """A response as far as it has come. What was asked for is repeated, as the API has it."""
    asked = wish.model_dump(
        by_alias=True,
        include={
            "instructions",
            "max_output_tokens",
            "previous_response_id",
            "temperature",
            "top_p",
            "top_logprobs",
            "user",
        },
    )
    text = {} if wish.text is None else wish.text.model_dump(by_alias=True, exclude_none=True)
    return {
        "id": reply.id,
        "object": "response",
        "created_at": reply.created,
        "model": reply.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": None,
        **asked,
        "background": False,
        "metadata": wish.metadata or {},
        "parallel_tool_calls": wish.parallel_tool_calls is not False,
        "reasoning": {"effort": wish.reasoning and wish.reasoning.effort, "summary": None},
        "store": bool(wish.store),
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": wish.tool_choice or "auto",
        "tools": wish.tools or [],
        "truncation": wish.truncation or "disabled",
    }


def status_of(finish: str | None) -> str:
    """How a response has ended."""
    return "incomplete" if finish == "length" else "completed"


def ended_response(
    wish: ResponsesRequest, reply: Reply, output: list[JsonMap], finish: str | None, phases: Sequence[Phases]
) -> JsonMap:
    """A response whose answer is complete."""
    body = response_object(wish, reply, output, status_of(finish))
    return {**body, "usage": _usage(reply), **reports(reply, phases)}


def _usage(reply: Reply) -> JsonMap:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
