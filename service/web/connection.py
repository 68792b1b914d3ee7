"""One client connection: uvicorn's, with bounds, an end to its patience, and errors in our shape."""

from __future__ import annotations

import asyncio
import http
import re
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import HeadersTooLarge, InvalidHttp, ServiceError, UriTooLong
from service.web.chunks import CHUNKS, Chunks
from service.web.shape import error_body

MOST_URL_BYTES = 8 * 1024
MOST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
MOST_IN_A_ROW = 16  # requests that wait while another is answered: each takes a hundred times its bytes
HOST = re.compile(rb"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(:[0-9]*)?")
RECEIVED = "twophase.received"  # the name of the ASGI extension that says when a request was there
LINGER_S = 2  # a connection that is closed while bytes arrive is reset, and the client never reads why


class Connection(HttpToolsProtocol):
    """Bounds what a client may send around a body, and how long it may take to send or to read.

    The parser keeps whatever has not become a header, a piece of body or a message yet, without a
    limit of its own: an endless header, trailer or chunk extension would fill the memory.
    """

    def __init__(
        self,
        *args: Any,
        write_timeout_s: float,
        head_timeout_s: float,
        count: Callable[[int], None],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._count = count  # the status of what is refused here, which no middleware sees
        self._write_timeout_s = write_timeout_s
        self._head_timeout_s = head_timeout_s
        self._unread: asyncio.TimerHandle | None = None
        self._unfinished: asyncio.TimerHandle | None = None  # runs while a head is being read
        self._unparsed_bytes = 0  # received since the parser last made something of it
        self._head_bytes = 0
        self._fault: ServiceError | None = None
        self._deaf = False
        self._answering: RequestResponseCycle | None = None  # of a row of requests `cycle` is the newest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unfinished = self.loop.call_later(self._head_timeout_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_reads()
        self._head_is_there()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MOST_HEAD_BYTES and not self._deaf:
            self._refuse(_too_much_head())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unparsed_bytes = self._head_bytes = 0
        if self._unfinished is None:  # a later request of a connection that is kept open
            self._unfinished = self.loop.call_later(self._head_timeout_s, self.transport.abort)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MOST_URL_BYTES:
            self._fault = UriTooLong(f"The URL is longer than {MOST_URL_BYTES} bytes.")
            raise self._fault

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._unfinished is None:  # a trailer: it comes after all decisions that headers are for
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MOST_HEAD_BYTES or len(self.headers) >= MOST_HEADERS:
            self._fault = _too_much_head()
            raise self._fault
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_there()
        self._unparsed_bytes = 0
        self._check_host()
        if len(self.pipeline) >= MOST_IN_A_ROW:
            self._fault = InvalidHttp(f"More than {MOST_IN_A_ROW} requests wait for their turn.")
            raise self._fault
        super().on_headers_complete()
        if self.pipeline:  # uvicorn would read on when their turn comes, and not see the client leave before
            self.flow.resume_reading()
        if self.parser.should_upgrade():  # it is not upgraded, and the parser reads nothing after it
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        # From here on it waits for nothing but the event loop.
        cycle.scope["extensions"] = {
            CHUNKS: {"write": Chunks(cycle).write},
            RECEIVED: {"at_s": time.monotonic()},
        }
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = self.cycle  # the newest: of a row of requests it may be one whose turn has yet to come
        if cycle.response_complete and cycle.more_body:  # refused unread: what is still to come has no reader
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._client_reads()

    def send_400_response(self, msg: str) -> None:
        """What the parser or a bound has refused is told in the shape of every other error."""
        self._refuse(self._fault or InvalidHttp("The request is not valid HTTP/1.1."))

    def _refuse(self, error: ServiceError) -> None:
        """Read nothing more. The refusal is written where no answer is under way that it would break."""
        self._deaf = True
        self._head_is_there()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and (cycle.response_started or self.pipeline):
            self.transport.close()
        elif cycle is None or cycle.response_complete or cycle.more_body:
            if cycle is not None:  # its body is broken: whoever waits for the rest waits in vain
                cycle.disconnected = True
                cycle.message_event.set()
            if cycle is None or cycle.response_complete:
                self._count(error.status)  # else the request has come to a route, and is counted there
            self.transport.write(_raw(error))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:  # the requests before are whole: they are answered, then the connection ends
            cycle.keep_alive = False

    def _check_host(self) -> None:
        """One host and no more, as HTTP/1.1 asks: two readers could take two different ones."""
        hosts = [value for name, value in self.headers if name == b"host"]
        needed = self.parser.get_http_version() != "1.0"
        if len(hosts) > 1 or (needed and not hosts) or not all(map(HOST.fullmatch, hosts)):
            self._fault = InvalidHttp("The request needs one Host header, with a host and perhaps a port.")
            raise self._fault

    def _client_reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _head_is_there(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None


def _too_much_head() -> HeadersTooLarge:
    return HeadersTooLarge(
        f"The headers are more than {MOST_HEADERS}, or larger than {MOST_HEAD_BYTES} bytes; send fewer."
    )


def _raw(error: ServiceError) -> bytes:
    """An error as the bytes of a response, for a request that never became one."""
    body = orjson.dumps(error_body(error))
    return (
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-request-id: req-{uuid.uuid4().hex}\r\nconnection: close\r\n\r\n"
    ).encode() + body


def connection_class(*, write_timeout_s: float, head_timeout_s: float, count: Callable[[int], None]) -> Any:
    """`Connection` with its limits, as uvicorn takes a protocol."""
    return partial(Connection, write_timeout_s=write_timeout_s, head_timeout_s=head_timeout_s, count=count)
