"""Deltas to the typed events of OpenAI's responses, numbered from 0. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from service.chat.reply import Reply
from service.engine.protocol import CallDelta, Delta
from service.errors import ServiceError
from service.web.choice import Whole
from service.web.encode import KEEP_ALIVE
from service.web.face import Encoder
from service.web.faces.responses import items
from service.web.faces.responses.request import ResponsesRequest
from service.web.faces.said import JsonMap

GROWS = {  # the event by which an item of each kind grows
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
Done = Callable[[JsonMap, Whole], None]


class ItemEncoder(Encoder):
    """The events of one stream. `done` hears of the complete response."""

    keep_alive = KEEP_ALIVE

    def __init__(self, reply: Reply, wish: ResponsesRequest, done: Done) -> None:
        self._reply = reply
        self._wish = wish
        self._done = done
        self._number = 0
        self._output: list[JsonMap] = []  # items that have ended
        self._item: JsonMap | None = None  # the one that grows
        self._kind = ""  # its type
        self._head = b""  # of its deltas
        self._said: list[str] = []
        self._logprobs: list[JsonMap] = []
        self._whole = Whole()
        begun = items.response_object(wish, reply, [], "in_progress")
        self.opening = self._event("response.created", response=begun)
        self.opening += self._event("response.in_progress", response=begun)

    def chunk(self, delta: Delta) -> bytes:
        self._whole.add(delta)
        quick = delta.finish is None and not (delta.reasoning or delta.calls or delta.logprobs)
        if quick and self._kind == "message":
            return self._grow(delta.text) if delta.text else b""
        events = b""
        if delta.reasoning:
            events += self._begin("reasoning") + self._grow(delta.reasoning)
        if delta.text or delta.logprobs:
            events += self._begin("message") + self._text(delta)
        for call in delta.calls:
            events += self._call(call)
        if delta.finish is not None:
            if not (self._output or self._item):
                events += self._begin("message")
            events += self._close(cut=delta.finish == "length")
        return events

    def end(self) -> bytes:
        finish, phases = self._whole.finish, self._reply.phases()
        body = items.ended_response(self._wish, self._reply, self._output, finish, phases)
        self._done(body, self._whole)
        return self._event(f"response.{body['status']}", response=body)

    def failed(self, error: ServiceError) -> bytes:
        body = items.response_object(self._wish, self._reply, self._output, "failed")
        body["error"] = {"code": error.code, "message": error.message}
        return self._event("response.failed", response=body)

    def _text(self, delta: Delta) -> bytes:
        if not delta.logprobs:
            return self._grow(delta.text)
        told = items.logprobs(self._reply, delta.logprobs)
        self._said.append(delta.text)
        self._logprobs += told
        return self._event("response.output_text.delta", **self._place(), delta=delta.text, logprobs=told)

    def _call(self, call: CallDelta) -> bytes:
        begun = b""
        if call.id is not None:
            begun = self._close() + self._begin("function_call", call_id=call.id, name=call.name)
        return begun + self._grow(call.arguments) if call.arguments else begun

    def _grow(self, text: str) -> bytes:
        self._said.append(text)
        self._number += 1
        return b'%b%d,"delta":%b}\n\n' % (self._head, self._number - 1, orjson.dumps(text))

    def _begin(self, kind: str, **fields: Any) -> bytes:
        """The beginning of an item, unless one of its kind grows."""
        if kind == self._kind:
            return b""
        events = self._close()
        self._kind, self._item = kind, items.new_item(kind, **fields)
        events += self._event("response.output_item.added", output_index=len(self._output), item=self._item)
        if kind == "message":
            events += self._event("response.content_part.added", **self._place(), part=items.text_part(""))
        told: JsonMap = {"type": f"{GROWS[kind]}.delta", **self._place()}
        if kind == "message":
            told["logprobs"] = []
        self._head = b'event: %b\ndata: %b,"sequence_number":' % (
            told["type"].encode(),
            orjson.dumps(told)[:-1],
        )
        return events

    def _close(self, *, cut: bool = False) -> bytes:
        if self._item is None:
            return b""
        text, place = "".join(self._said), self._place()
        ended = items.ended_item(self._item, text, self._logprobs, cut=cut)
        events = self._grown(text, place)
        if self._kind == "message":
            events += self._event("response.content_part.done", **place, part=ended["content"][0])
        events += self._event("response.output_item.done", output_index=len(self._output), item=ended)
        self._output.append(ended)
        self._item, self._kind, self._said, self._logprobs = None, "", [], []
        return events

    def _grown(self, text: str, place: JsonMap) -> bytes:
        kind = f"{GROWS[self._kind]}.done"
        if self._kind == "function_call":
            assert self._item is not None
            return self._event(kind, **place, name=self._item["name"], arguments=text)
        if self._kind == "message":
            return self._event(kind, **place, text=text, logprobs=self._logprobs)
        return self._event(kind, **place, text=text)

    def _place(self) -> JsonMap:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        return place if self._kind == "function_call" else {**place, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
