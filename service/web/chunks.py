"""A short way to the connection for the chunks in the middle of a body."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

CHUNKS = "twophase.chunks"  # the name of the ASGI extension that offers it


class Chunks:
    """Writes without ASGI's `send`, which is a coroutine that passes through every middleware.

    Between a response's start and its end no middleware has anything to do, and a token is small.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, data: bytes) -> bool:
        """Send `data`, which is not empty. False: the client reads too slowly or has left; use `send`."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True
