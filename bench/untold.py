"""The service with its telemetry taken out, to show what telemetry costs: `python -m bench.untold serve …`.

Requests are still counted and timed as far as an answer's own usage and phases need it; nothing goes to
metrics, spans or log, and no gap between tokens is noted. No setting does this: an operator who cannot
see is not served.
"""

from __future__ import annotations

import sys

from service.__main__ import main
from service.engine.protocol import Delta
from service.telemetry.observer import Observation
from service.telemetry.record import RequestRecord


def _count(record: RequestRecord, delta: Delta) -> None:
    choice = record.choices[delta.index]
    choice.output_tokens += len(delta.token_ids)
    if delta.clock is not None:
        choice.clock = delta.clock
    if delta.finish is not None:
        choice.finish = delta.finish


def _tell_nobody(observation: Observation) -> None:
    """In place of spans, metrics and the log's line."""


if __name__ == "__main__":
    RequestRecord.saw = _count  # type: ignore[assignment, method-assign]
    Observation.tell = _tell_nobody  # type: ignore[assignment, method-assign]
    sys.exit(main(sys.argv[1:]))
