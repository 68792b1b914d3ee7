"""One client connection: uvicorn's, with an end to its patience and errors in our shape."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import InvalidHttp
from service.web.encode import error_body


class Connection(HttpToolsProtocol):
    """Drops a client that does not read what is written, or does not finish its request's head, in time."""

    def __init__(self, *args: Any, write_timeout_s: float, head_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._write_timeout_s = write_timeout_s
        self._head_timeout_s = head_timeout_s
        self._unread: asyncio.TimerHandle | None = None
        self._unfinished: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unfinished = self.loop.call_later(self._head_timeout_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_reads()
        self._head_is_there()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._unfinished is None:  # a later request of a connection that is kept open
            self._unfinished = self.loop.call_later(self._head_timeout_s, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._client_reads()

    def _client_reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP at all is refused in the shape of every other error."""
        body = orjson.dumps(error_body(InvalidHttp("The request is not valid HTTP/1.1.")))
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _head_is_there(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None


def connection_class(*, write_timeout_s: float, head_timeout_s: float) -> Any:
    """`Connection` with its limits, as uvicorn takes a protocol."""
    return partial(Connection, write_timeout_s=write_timeout_s, head_timeout_s=head_timeout_s)
