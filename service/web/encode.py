"""Deltas to bytes: the OpenAI shapes of a streamed and of a whole answer. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.chat.reply import Reply, Usage
from service.engine.protocol import Delta, TokenLogprob
from service.errors import ServiceError
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.face import Encoder
from service.web.logprobs import logprobs_body
from service.web.shape import error_body

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class ChunkEncoder(Encoder):
    """Chunks of one stream. What is the same in every chunk is written once, when the stream opens."""

    opening = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, answer: Reply, *, with_usage: bool, running_usage: bool = False) -> None:
        self._answer = answer
        self._with_usage = with_usage
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            orjson.dumps(answer.id),
            answer.created,
            orjson.dumps(answer.model),
        )
        self._tail = b',"usage":null}\n\n' if with_usage and not running_usage else b"}\n\n"
        self._running_usage = running_usage
        self._quick = not running_usage
        self._thought = [
            self._head + b'"choices":[{"index":%d,"delta":{"reasoning":' % i for i in range(answer.n)
        ]
        self._text = [self._head + b'"choices":[{"index":%d,"delta":{"content":' % i for i in range(answer.n)]
        self._calls = [
            self._head + b'"choices":[{"index":%d,"delta":{"tool_calls":' % i for i in range(answer.n)
        ]
        self._rest = b'},"logprobs":null,"finish_reason":null}]' + self._tail
        self._begun: set[int] = set()

    def chunk(self, delta: Delta) -> bytes:
        """The event for a delta; empty where it has nothing to show yet."""
        if delta.finish is None and delta.index in self._begun and self._quick:
            if delta.logprobs or delta.reasoning_logprobs:
                return self._rare_chunk(delta)
            if delta.calls:
                if delta.text or delta.reasoning:
                    return self._rare_chunk(delta)
                pieces = orjson.dumps(call_pieces(delta))
                return b"%b%b%b" % (self._calls[delta.index], pieces, self._rest)
            if delta.reasoning:
                if delta.text:
                    return self._rare_chunk(delta)
                return b"%b%b%b" % (self._thought[delta.index], orjson.dumps(delta.reasoning), self._rest)
            if not delta.text:
                return b""
            return b"%b%b%b" % (self._text[delta.index], orjson.dumps(delta.text), self._rest)
        return self._rare_chunk(delta)

    def _rare_chunk(self, delta: Delta) -> bytes:
        """The first chunk of a choice brings the role, its last one the finish reason."""
        told = delta.logprobs or delta.reasoning_logprobs
        if not (delta.text or delta.reasoning or delta.finish or delta.calls or told):
            return b""
        body: dict[str, Any] = {}
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            body = {"role": "assistant"}
            if not delta.reasoning or delta.text:
                body["content"] = (delta.text or None) if delta.calls else delta.text
        elif delta.text:
            body = {"content": delta.text}
        if delta.reasoning:
            body["reasoning"] = delta.reasoning
        if delta.calls:
            body["tool_calls"] = call_pieces(delta)
        choice = {
            "index": delta.index,
            "delta": body,
            "logprobs": _logprobs(self._answer, delta.logprobs, delta.reasoning_logprobs),
            "finish_reason": delta.finish,
        }
        tail = (
            b',"usage":%b}\n\n' % orjson.dumps(usage_body(self._answer.usage))
            if self._running_usage
            else self._tail
        )
        return self._head + b'"choices":[%b]' % orjson.dumps(choice) + tail

    def end(self) -> bytes:
        """Before the mark of the end, where the caller asked for usage, a chunk without choices."""
        return self._usage_chunk() + DONE if self._with_usage else DONE

    def failed(self, error: ServiceError) -> bytes:
        return error_event(error)

    def _usage_chunk(self) -> bytes:
        answer = self._answer
        values = {"choices": [], "usage": usage_body(answer.usage), **reports(answer, answer.phases())}
        return self._head + orjson.dumps(values)[1:] + b"\n\n"


def error_event(error: ServiceError) -> bytes:
    """An error inside a stream that has begun."""
    return b"data: %b\n\n" % orjson.dumps(error_body(error))


def reports(answer: Reply, phases: Sequence[Phases]) -> dict[str, Any]:
    """Budget and phases: an object each, or a list in the order of the prompts where there are several."""
    told = {
        "budget": [budget.report() for budget in answer.budgets],
        "phases": [each.report() for each in phases],
    }
    return told if len(phases) > 1 else {name: values[0] for name, values in told.items()}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **(
            {}
            if usage.reasoning_tokens is None
            else {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}
        ),
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


def message_body(choice: Whole, *, reasons: bool = False) -> dict[str, Any]:
    """The message of a choice."""
    said: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if reasons:
        said["reasoning"] = choice.thought or None
    if not choice.pieces:
        return said
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.calls
    ]
    return {**said, "content": choice.text or None, "tool_calls": calls}


def whole_body(answer: Reply, choices: Sequence[Whole], phases: Sequence[Phases]) -> dict[str, Any]:
    """A complete answer in OpenAI's shape."""
    return {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [
            {
                "index": index,
                "message": message_body(choice, reasons=answer.tells_thinking),
                "logprobs": _logprobs(answer, choice.logprobs, choice.reasoning_logprobs),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_body(answer.usage),
        **reports(answer, phases),
    }


def _logprobs(
    answer: Reply, tokens: Sequence[TokenLogprob], thought: Sequence[TokenLogprob]
) -> dict[str, Any] | None:
    if answer.alphabet is None or not (tokens or thought):
        return None
    return logprobs_body(answer.alphabet, tokens, thought)
