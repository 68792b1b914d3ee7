"""The two ways an answer leaves: as a stream of events, or whole. Each owns the answer and closes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.chat.answer import Answer
from service.engine.protocol import Delta, Sink
from service.errors import Draining, ServiceError
from service.web.chunks import CHUNKS
from service.web.encode import DONE, KEEP_ALIVE, ChunkEncoder, Whole, error_event, whole_body
from service.web.refusal import render
from service.web.writer import Writer

CUT_OFF = "The service is shutting down and could not finish this answer."

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class EventStream(Response, Sink):
    """A streamed answer. Deltas are written from the engine's loop; the request's task only waits."""

    def __init__(
        self,
        answer: Answer,
        encoder: ChunkEncoder,
        headers: Mapping[str, str],
        *,
        with_usage: bool,
        keepalive_s: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**STREAM_HEADERS, **headers})
        self._answer = answer
        self._encoder = encoder
        self._with_usage = with_usage
        self._keepalive_s = keepalive_s
        self._quiet = True
        self._before_content = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = self._answer.record
        directly = scope.get("extensions", {}).get(CHUNKS, {}).get("write")
        self._writer = Writer(send, record.client_stalls, record.client_reads, directly)
        record.status = 200
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
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
            self._answer.record.first_content_s = time.monotonic()
        chunk = self._encoder.chunk(delta)
        if delta.finish is not None and self._answer.complete:
            self._writer.write_last(chunk, self._end)
        elif chunk:
            self._writer.write(chunk)

    def fail(self, error: ServiceError) -> None:
        self._writer.write_last(b"", lambda: error_event(error))

    def _end(self) -> bytes:
        """Made when its turn comes, so that the phases tell of a reader who was slow until then."""
        return self._encoder.usage_chunk() + DONE if self._with_usage else DONE

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
            self._answer.record.last_byte_s = time.monotonic()
        else:
            self._answer.record.client_left = True

    def _keep_alive(self) -> None:
        if self._quiet and not self._writer.over.done() and not self._writer.behind:
            self._writer.write(KEEP_ALIVE)
        self._quiet = True


class WholeAnswer(Response, Sink):
    """An answer sent in one piece when it is complete."""

    def __init__(self, answer: Answer, headers: Mapping[str, str]) -> None:
        self.background = None
        self._answer = answer
        self._extra_headers = headers
        self._choices = [Whole() for _ in range(answer.n)]
        self._error: ServiceError | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response(receive)
            if response is not None:
                record = self._answer.record
                record.status = response.status_code
                if self._error is None:
                    record.first_content_s = time.monotonic()
                await response(scope, receive, send)
                record.last_byte_s = time.monotonic()
        finally:
            self._answer.close()

    async def _response(self, receive: Receive) -> Response | None:
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
            self._answer.record.client_left = True
            return None
        return render(self._error) if self._error is not None else self._whole()

    def put(self, delta: Delta) -> None:
        self._choices[delta.index].add(delta)
        if self._answer.complete and not self._end.done():
            self._end.set_result(None)

    def fail(self, error: ServiceError) -> None:
        self._error = error
        if not self._end.done():
            self._end.set_result(None)

    def _whole(self) -> Response:
        phases = self._answer.observation.phases()
        body = whole_body(self._answer, self._choices, phases)
        headers = {**self._extra_headers, "server-timing": phases.server_timing()}
        return Response(orjson.dumps(body), media_type="application/json", headers=headers)


async def client_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
