"""Deltas to bytes in the shapes of OpenAI's older completions. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.chat.reply import Reply
from service.chat.spelling import Alphabet
from service.engine.protocol import Delta, TokenLogprob
from service.errors import ServiceError
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.encode import DONE, KEEP_ALIVE, error_event, reports, usage_body
from service.web.face import Encoder


class Offsets:
    """Where the next token of a choice begins in its text, in characters."""

    def __init__(self) -> None:
        self._begun = 0

    def logprobs(self, alphabet: Alphabet, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object `logprobs`, lists of one length; tokens of one character begin where it does."""
        offsets = []
        for token in tokens:
            inside = bool(token.spelled) and _continues(token.spelled[0])
            offsets.append(self._begun - inside)
            self._begun += sum(not _continues(byte) for byte in token.spelled)
        return {
            "tokens": [_name(alphabet, token.token_id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{_name(alphabet, at): value for at, value in token.top} for token in tokens],
            "text_offset": offsets,
        }


class TextEncoder(Encoder):
    """Chunks of one stream; each has a whole answer's shape."""

    opening = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, reply: Reply, *, with_usage: bool, running_usage: bool) -> None:
        self._reply = reply
        self._with_usage = with_usage
        self._running_usage = running_usage
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            orjson.dumps(reply.id),
            reply.created,
            orjson.dumps(reply.model),
        )
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
        self._text = [self._head + b'{"index":%d,"text":' % index for index in range(reply.n)]
        self._rest = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._offsets = [Offsets() for _ in range(reply.n)]

    def chunk(self, delta: Delta) -> bytes:
        if delta.finish is None and not delta.logprobs and not self._running_usage:
            if not delta.text:
                return b""
            return b"%b%b%b" % (self._text[delta.index], orjson.dumps(delta.text), self._rest)
        if not (delta.text or delta.logprobs or delta.finish):
            return b""
        logprobs = _logprobs(self._reply, delta.logprobs, self._offsets[delta.index])
        choice = _choice(delta.index, delta.text, logprobs, delta.finish)
        tail = b'],"usage":%b}\n\n' % self._usage() if self._running_usage else self._tail
        return self._head + orjson.dumps(choice) + tail

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        told = orjson.dumps(reports(self._reply, self._reply.phases()))[1:]
        return b'%b],"usage":%b,%b\n\n%b' % (self._head, self._usage(), told, DONE)

    def failed(self, error: ServiceError) -> bytes:
        return error_event(error)

    def _usage(self) -> bytes:
        return orjson.dumps(usage_body(self._reply.usage))


def text_body(reply: Reply, choices: Sequence[Whole], phases: Sequence[Phases]) -> dict[str, Any]:
    """A complete answer."""
    return {
        "id": reply.id,
        "object": "text_completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [
            _choice(index, choice.text, _logprobs(reply, choice.logprobs, Offsets()), choice.finish)
            for index, choice in enumerate(choices)
        ],
        "usage": usage_body(reply.usage),
        **reports(reply, phases),
    }


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(reply: Reply, tokens: Sequence[TokenLogprob], offsets: Offsets) -> dict[str, Any] | None:
    if reply.alphabet is None or not tokens:
        return None
    return offsets.logprobs(reply.alphabet, tokens)


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 is not the first of its character."""
    return byte & 0xC0 == 0x80


def _name(alphabet: Alphabet, token_id: int) -> str:
    return alphabet.raw(token_id).decode("utf-8", "replace")
