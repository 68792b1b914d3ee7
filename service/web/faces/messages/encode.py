"""Deltas to bytes in the shapes of Anthropic's messages: blocks that begin, grow and end. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic_core import from_json

from service.chat.reply import Reply
from service.engine.protocol import CallDelta, Delta
from service.errors import ServiceError
from service.telemetry.phases import Phases
from service.web.choice import Call, Whole
from service.web.encode import reports
from service.web.face import Encoder
from service.web.shape import messages_error_body

PIECES = {  # of each kind of block: the type of its deltas, and the name of what they bring
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def event(kind: str, **fields: Any) -> bytes:
    """An event, named in its line and in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


class BlockEncoder(Encoder):
    """The events of one stream. The head of a block's deltas is written once, when the block begins."""

    keep_alive = event("ping")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        # How much of the prompt is cached is not known yet: the last event tells.
        begun = {"input_tokens": reply.budgets[0].prompt_tokens, "output_tokens": 0}
        message = _message(reply, [], None, None, begun)
        self.opening = event("message_start", message=message)
        self._kind = ""  # of the block that is open
        self._index = -1
        self._head = b""
        self._finish: str | None = None
        self._stopped_by: str | None = None

    def chunk(self, delta: Delta) -> bytes:
        if self._kind == "text" and delta.finish is None and not (delta.reasoning or delta.calls):
            return b"%b%b}}\n\n" % (self._head, orjson.dumps(delta.text)) if delta.text else b""
        said = b""
        if delta.reasoning:
            said += self._open("thinking", thinking="", signature="") + self._piece(delta.reasoning)
        if delta.text:
            said += self._open("text", text="") + self._piece(delta.text)
        for call in delta.calls:
            said += self._call(call)
        if delta.finish is not None:
            self._finish, self._stopped_by = delta.finish, delta.stopped_by
            said += self._close()
        return said

    def end(self) -> bytes:
        reason, sequence = stopped(self._reply, self._finish, self._stopped_by)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        told = {"usage": usage_body(self._reply), **reports(self._reply, self._reply.phases())}
        return event("message_delta", delta=delta, **told) + event("message_stop")

    def failed(self, error: ServiceError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(messages_error_body(error))

    def _call(self, call: CallDelta) -> bytes:
        begun = b""
        if call.id is not None:
            begun = self._close() + self._open("tool_use", id=call.id, name=call.name, input={})
        return begun + self._piece(call.arguments) if call.arguments else begun

    def _open(self, kind: str, **fields: Any) -> bytes:
        """The beginning of a block, unless one of its kind is open."""
        if kind == self._kind:
            return b""
        ended = self._close()
        self._kind, self._index = kind, self._index + 1
        delta, name = PIECES[kind]
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (self._index, delta.encode(), name.encode())
        )
        block = {"type": kind, **fields}
        return ended + event("content_block_start", index=self._index, content_block=block)

    def _piece(self, text: str) -> bytes:
        return b"%b%b}}\n\n" % (self._head, orjson.dumps(text))

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return event("content_block_stop", index=self._index)


def message_body(reply: Reply, choices: Sequence[Whole], phases: Sequence[Phases]) -> dict[str, Any]:
    """A complete answer."""
    choice = choices[0]
    content: list[dict[str, Any]] = []
    if choice.thought:
        content.append({"type": "thinking", "thinking": choice.thought, "signature": ""})
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    content += [_tool_use(call) for call in choice.calls]
    reason, sequence = stopped(reply, choice.finish, choice.stopped_by)
    return {**_message(reply, content, reason, sequence, usage_body(reply)), **reports(reply, phases)}


def stopped(reply: Reply, finish: str | None, stopped_by: str | None) -> tuple[str | None, str | None]:
    """Why an answer has ended, and the caller's string that ended it."""
    budget = reply.budgets[0]
    if finish == "stop" and stopped_by is not None:
        return "stop_sequence", stopped_by
    if finish == "length" and budget.clamped_from is not None and budget.output_limited_by == "window":
        return "model_context_window_exceeded", None
    return STOP_REASONS.get(finish or ""), None


def usage_body(reply: Reply) -> dict[str, Any]:
    """Here the input without what was read from the cache; together they are the prompt."""
    usage = reply.usage
    body: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return body


def _message(
    reply: Reply,
    content: list[dict[str, Any]],
    reason: str | None,
    sequence: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage,
    }


def _tool_use(call: Call) -> dict[str, Any]:
    """Of arguments that were cut off, as much as is there; what is no JSON at all, as it is."""
    try:
        arguments = from_json(call.arguments or "{}", allow_partial=True)
    except ValueError:
        arguments = {"arguments": call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
