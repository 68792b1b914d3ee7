"""Deltas to bytes: the OpenAI shapes of a streamed and of a whole answer. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.chat.answer import Answer, Usage
from service.engine.protocol import CallDelta, Delta
from service.errors import ServiceError
from service.telemetry.phases import Phases

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class ChunkEncoder:
    """Chunks of one stream. What is the same in every chunk is written once, when the stream opens."""

    def __init__(self, answer: Answer, *, with_usage: bool, running_usage: bool = False) -> None:
        self._answer = answer
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            orjson.dumps(answer.id),
            answer.created,
            orjson.dumps(answer.model),
        )
        self._tail = b',"usage":null}\n\n' if with_usage and not running_usage else b"}\n\n"
        self._running_usage = running_usage
        self._text = [self._head + b'"choices":[{"index":%d,"delta":{"content":' % i for i in range(answer.n)]
        self._calls = [
            self._head + b'"choices":[{"index":%d,"delta":{"tool_calls":' % i for i in range(answer.n)
        ]
        self._open = b'},"logprobs":null,"finish_reason":null}]'
        self._begun: set[int] = set()

    def chunk(self, delta: Delta) -> bytes:
        """The event for a delta; empty where it has nothing to show yet."""
        if delta.finish is None and delta.index in self._begun and not self._running_usage:
            if delta.calls:
                if delta.text:
                    return self._rare_chunk(delta)
                pieces = orjson.dumps(call_pieces(delta))
                return self._calls[delta.index] + pieces + self._open + self._tail
            if not delta.text:
                return b""
            return self._text[delta.index] + orjson.dumps(delta.text) + self._open + self._tail
        return self._rare_chunk(delta)

    def _rare_chunk(self, delta: Delta) -> bytes:
        """The first chunk of a choice brings the role, its last one the finish reason."""
        if not (delta.text or delta.finish or delta.calls):
            return b""
        body: dict[str, Any] = {}
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            body = {"role": "assistant", "content": (delta.text or None) if delta.calls else delta.text}
        elif delta.text:
            body = {"content": delta.text}
        if delta.calls:
            body["tool_calls"] = call_pieces(delta)
        choice = {"index": delta.index, "delta": body, "logprobs": None, "finish_reason": delta.finish}
        tail = (
            b',"usage":%b}\n\n' % orjson.dumps(usage_body(self._answer.usage))
            if self._running_usage
            else self._tail
        )
        return self._head + b'"choices":[%b]' % orjson.dumps(choice) + tail

    def usage_chunk(self) -> bytes:
        """The chunk without choices that ends a stream whose caller asked for usage."""
        usage = orjson.dumps(usage_body(self._answer.usage))
        budget = orjson.dumps(self._answer.budget.report())
        phases = orjson.dumps(self._answer.observation.phases().report())
        tail = b'"choices":[],"usage":%b,"budget":%b,"phases":%b}\n\n' % (usage, budget, phases)
        return self._head + tail


def error_event(error: ServiceError) -> bytes:
    """An error inside a stream that has begun."""
    return b"data: %b\n\n" % orjson.dumps(error_body(error))


def error_body(error: ServiceError) -> dict[str, Any]:
    """The one shape of every error."""
    return {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code},
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def call_pieces(delta: Delta) -> list[dict[str, Any]]:
    """What a delta adds to tool calls: a piece that begins one has its id and name, others arguments."""
    return [
        {"index": call.index, "function": {"arguments": call.arguments}}
        if call.id is None
        else {
            "index": call.index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in delta.calls
    ]


def message(text: str, pieces: Sequence[CallDelta]) -> dict[str, Any]:
    """One choice's message, its tool calls put together."""
    said: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if not pieces:
        return said
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if piece.id is not None:
            function = {"name": piece.name, "arguments": ""}
            calls[piece.index] = {"id": piece.id, "type": "function", "function": function}
        calls[piece.index]["function"]["arguments"] += piece.arguments
    return {**said, "content": text or None, "tool_calls": list(calls.values())}


def whole_body(
    answer: Answer,
    messages: Sequence[dict[str, Any]],
    finishes: Sequence[str | None],
    phases: Phases,
) -> dict[str, Any]:
    """A complete answer in OpenAI's shape; `messages` and `finishes` by choice."""
    return {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [
            {
                "index": index,
                "message": said,
                "logprobs": None,
                "finish_reason": finish,
            }
            for index, (said, finish) in enumerate(zip(messages, finishes, strict=True))
        ],
        "usage": usage_body(answer.usage),
        "budget": answer.budget.report(),
        "phases": phases.report(),
    }
