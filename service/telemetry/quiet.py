"""Keeps the OpenTelemetry libraries from flooding the log when a collector is down."""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger(__name__)

LIBRARY = "opentelemetry"
PARSERS = "opentelemetry.trace"  # they complain of a caller's headers, and quote them: not for our log
PAUSE_S = 60.0


class Quiet(logging.Handler):
    """Takes what the libraries log and passes on one line a minute, in words an operator can place."""

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        super().__init__(logging.WARNING)
        self._pause_s = pause_s
        self._silent_until_s = 0.0
        self._left_out = 0
        self._turn = threading.Lock()

    def attach(self) -> None:
        """Stand between the libraries and the log."""
        library = logging.getLogger(LIBRARY)
        library.addHandler(self)
        library.propagate = False

    def detach(self) -> None:
        """Give the libraries their way to the log back."""
        library = logging.getLogger(LIBRARY)
        library.removeHandler(self)
        library.propagate = not any(isinstance(handler, Quiet) for handler in library.handlers)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(PARSERS):
            return
        with self._turn:
            if time.monotonic() < self._silent_until_s:
                self._left_out += 1
                return
            self._silent_until_s = time.monotonic() + self._pause_s
            left_out, self._left_out = self._left_out, 0
        more = f" ({left_out} more like it since the last report)" if left_out else ""
        log.warning("traces do not get through; answers are not affected: %s%s", _first_line(record), more)


def _first_line(record: logging.LogRecord) -> str:
    lines = record.getMessage().splitlines()
    return lines[0][:300] if lines else record.name
