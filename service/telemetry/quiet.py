"""Keeps the OpenTelemetry libraries from flooding the log when a collector is down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LIBRARY = "opentelemetry"
PARSERS = "opentelemetry.trace"  # they complain of a caller's headers, and quote them: not for our log
PAUSE_S = 60.0


class Quiet(logging.Handler):
    """Takes what the libraries log, and hands one line a minute to `say`."""

    def __init__(self, say: Callable[[str], None], pause_s: float = PAUSE_S) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._pause_s = pause_s
        self._silent_until_s = 0.0
        self._left_out = 0

    def attach(self) -> None:
        """Stand between the libraries and the log."""
        library = logging.getLogger(LIBRARY)
        library.addHandler(self)
        library.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() < self._silent_until_s:
            self._left_out += 1
            return
        self._silent_until_s = time.monotonic() + self._pause_s
        left_out, self._left_out = self._left_out, 0
        more = f" ({left_out} more like it since the last report)" if left_out else ""
        self._say(_first_line(record) + more)


def hush_parsers() -> None:
    """Keep what the libraries say of a caller's headers out of the log."""
    parsers = logging.getLogger(PARSERS)
    parsers.addHandler(logging.NullHandler())
    parsers.propagate = False


def _first_line(record: logging.LogRecord) -> str:
    lines = record.getMessage().splitlines()
    return lines[0][:300] if lines else record.name
