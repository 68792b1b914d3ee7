"""Nothing from outside, and the service's log as an operator sees it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_tracing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own OTEL_ variables do not change what is tested."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


class RootLog(logging.Handler):
    """What reaches the service's log. pytest's own capture also listens at loggers that do not pass on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def root_log() -> Iterator[RootLog]:
    """The warnings of the service's log."""
    handler = RootLog()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
