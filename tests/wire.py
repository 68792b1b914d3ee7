"""Bytes to a server and bytes back, for what no HTTP client would send."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

from tests.serving import Running


@dataclass(frozen=True, slots=True)
class Reply:
    """One response, taken apart."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def code(self) -> str:
        """The code of an error, after a look at its shape."""
        assert self.headers["content-type"] == "application/json" and self.headers["x-request-id"]
        error = json.loads(self.content)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return str(error["code"])


def connect(server: Running, *, receive_bytes: int = 0) -> socket.socket:
    """A connection to it that does not wait for ever; with `receive_bytes`, one that holds little unread."""
    wire = socket.socket()
    if receive_bytes:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    wire.settimeout(10)
    wire.connect(("127.0.0.1", server.port))
    return wire


def to_the_end(wire: socket.socket) -> bytes:
    """All that comes until the other side closes, or resets, the connection."""
    received = bytearray()
    try:
        while part := wire.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return bytes(received)


def send(server: Running, *parts: bytes) -> list[Reply]:
    """Send all parts, then read to the end: the responses that came."""
    with connect(server) as wire:
        try:
            for part in parts:
                wire.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return replies(to_the_end(wire))


def replies(received: bytes) -> list[Reply]:
    """The responses in a row of bytes, none of them in chunks."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers["content-length"])
        found.append(Reply(int(status.split()[1]), headers, rest[:length]))
        received = rest[length:]
    return found
