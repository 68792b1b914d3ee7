"""The two ways an answer leaves: as a stream of events, or whole. Each owns the answer and closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.chat.reply import Reply
from service.engine.protocol import Delta, Sink
from service.errors import Draining, ServiceError
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.chunks import CHUNKS
from service.web.face import Encoder
from service.web.leaving import client_gone
from service.web.refusal import CUT_OFF, render
from service.web.writer import Writer

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class EventStream(Response, Sink):
    """A streamed answer. Deltas are written from the engine's loop; the request's task only waits."""

    def __init__(
        self,
        answer: Reply,
        encoder: Encoder,
        headers: Mapping[str, str],
        *,
        keepalive_s: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**STREAM_HEADERS, **headers})
        self._answer = answer
        self._encoder = encoder
        self._keepalive_s = keepalive_s
        self._quiet = True
        self._before_content = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        directly = scope.get("extensions", {}).get(CHUNKS, {}).get("write")
        self._writer = Writer(send, self._answer.stalls, self._answer.reads, directly)
        self._answer.began(200)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if self._encoder.opening:
                self._writer.write(self._encoder.opening)
            self._answer.listen(self)
            await self._over(receive)
        except asyncio.CancelledError:  # the drain limit has passed: this is the last thing to do
            self._answer.fail(Draining(CUT_OFF))
        finally:
            self._answer.close()

    def put(self, delta: Delta) -> None:
        self._quiet = False
        if self._before_content and (delta.text or delta.calls or delta.reasoning):
            self._before_content = False
            self._answer.showed()
        chunk = self._encoder.chunk(delta)
        if delta.finish is not None and self._answer.complete:
            self._writer.write_last(chunk, self._encoder.end)
        elif chunk:
            self._writer.write(chunk)

    def fail(self, error: ServiceError) -> None:
        self._writer.write_last(b"", lambda: self._encoder.failed(error))

    async def _over(self, receive: Receive) -> None:
        """Returns when the last byte is written or the client has left."""
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            while not (gone.done() or self._writer.over.done()):
                await asyncio.wait(
                    {gone, self._writer.over}, timeout=self._keepalive_s, return_when=asyncio.FIRST_COMPLETED
                )
                self._keep_alive()
            self._note_end()
        finally:
            gone.cancel()
            self._writer.abandon()

    def _note_end(self) -> None:
        over = self._writer.over
        if over.done() and over.exception() is None:
            self._answer.ended()
        else:
            self._answer.left()

    def _keep_alive(self) -> None:
        if self._quiet and not self._writer.over.done() and not self._writer.behind:
            self._writer.write(self._encoder.keep_alive)
        self._quiet = True


class WholeAnswer(Response, Sink):
    """An answer sent in one piece when it is complete."""

    def __init__(
        self,
        answer: Reply,
        body: Callable[[Reply, Sequence[Whole], Sequence[Phases]], Any],
        headers: Mapping[str, str],
    ) -> None:
        self.background = None
        self._answer = answer
        self._body = body
        self._extra_headers = headers
        self._choices = [Whole() for _ in range(answer.n)]
        self._error: ServiceError | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response(scope, receive)
            if response is not None:
                self._answer.began(response.status_code)
                if self._error is None:
                    self._answer.showed()
                await response(scope, receive, send)
                self._answer.ended()
        finally:
            self._answer.close()

    async def _response(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer or an error; None when the client has left."""
        try:
            self._answer.listen(self)
            gone = asyncio.ensure_future(client_gone(receive))
            try:
                await asyncio.wait((gone, self._end), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
        except asyncio.CancelledError:  # the drain limit has passed
            self._answer.fail(Draining(CUT_OFF))
        if not self._end.done():
            self._answer.left()
            return None
        return render(self._error, scope["path"]) if self._error is not None else self._whole()

    def put(self, delta: Delta) -> None:
        self._choices[delta.index].add(delta)
        if self._answer.complete and not self._end.done():
            self._end.set_result(None)

    def fail(self, error: ServiceError) -> None:
        self._error = error
        if not self._end.done():
            self._end.set_result(None)

    def _whole(self) -> Response:
        phases = self._answer.phases()
        body = self._body(self._answer, self._choices, phases)
        headers = {**self._extra_headers, "server-timing": phases[0].server_timing()}
        return Response(orjson.dumps(body), media_type="application/json", headers=headers)
