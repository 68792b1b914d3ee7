"""Takes OTLP over HTTP and forgets it: `python -m bench.collector PORT`. Spans need somewhere to go."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Forgetful(BaseHTTPRequestHandler):
    """Accepts every export."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """As OTLP over HTTP answers: an empty message says that all was taken."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to say."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Forgetful).serve_forever()
