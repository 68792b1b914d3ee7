"""One line per request, for people or for machines; never a word of what was asked or answered."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson

from service.telemetry.outcome import FAULTS
from service.telemetry.phases import Phases
from service.telemetry.record import Outcome, RequestRecord

LogFormat = Literal["console", "json"]

log = logging.getLogger("twophase.request")


class RequestLine:
    """The message of a request's line: named values, which read as `name=value` in plain text."""

    def __init__(self, values: dict[str, object]) -> None:
        self.values = values

    def __str__(self) -> str:
        phases = self.values["phases"]
        assert isinstance(phases, dict)
        cache = phases["cache"]
        miss = {f"miss_{name}": value for name, value in (cache["miss"] or {}).items()}
        flat = {**self.values, **phases, **cache, **miss}  # what is left nested is left out
        return " ".join(
            [
                f"{name}={value}" if type(value) is str else f"{name}={_plain(value)}"
                for name, value in flat.items()
                if value is not None and value != "" and type(value) is not dict
            ]
        )


class JsonLines(logging.Formatter):
    """One JSON object a line. Values of a request's line are members of the object itself."""

    def format(self, record: logging.LogRecord) -> str:
        head: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, RequestLine):
            return orjson.dumps({**head, **record.msg.values}).decode()
        head["message"] = record.getMessage()
        if record.exc_info:
            head["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(head).decode()


def log_to_stderr(kind: LogFormat, level: str) -> None:
    """From now on the whole log of this process goes there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(kind))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def formatter(kind: LogFormat) -> logging.Formatter:
    """The formatter of the service's whole log."""
    if kind == "json":
        return JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def write(record: RequestRecord, phases: Phases, outcome: Outcome, trace_id: str | None) -> None:
    """Log a request that is over; a fault of ours as a warning."""
    level = logging.WARNING if outcome in FAULTS else logging.INFO
    if log.isEnabledFor(level):
        line = RequestLine(_values(record, phases, outcome, trace_id))
        # Made by hand, since `log.log` looks through the stack for a caller whom no formatter of ours names.
        told = log.makeRecord(log.name, level, __name__, 0, line, (), None)
        if record.closed_s is not None:  # when it was over; it is told of a little later
            told.created = record.wall_offset_s + record.closed_s
            told.msecs = told.created % 1 * 1e3
        log.handle(told)


def _values(
    record: RequestRecord, phases: Phases, outcome: Outcome, trace_id: str | None
) -> dict[str, object]:
    budget = record.budget
    return {
        "outcome": outcome,
        "status": record.status,
        "error": None if record.error is None else record.error.code,
        "request_id": record.request_id,
        "trace_id": trace_id,
        "route": record.route,
        "model": record.model,
        "tenant": record.tenant,
        "client": record.client,
        "stream": record.stream,
        "n": record.n,
        "prompt_tokens": None if budget is None else budget.prompt_tokens,
        "output_tokens": record.output_tokens,
        "finish": ",".join(choice.finish or "none" for choice in record.choices),
        "budget_action": None if budget is None else budget.action,
        "longest_gap_ms": round(1e3 * record.longest_gap_s, 3),
        "phases": phases.report(),
    }


def _plain(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value).lower()
