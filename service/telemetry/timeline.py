"""A record put in order: when each part began and ended, contiguous and never negative.

Phases and spans are both read off here, so that they cannot disagree. Every border is held between
the one before it and the end, which also absorbs what is left between two processes' clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.protocol import EngineClock
from service.telemetry.record import ChoiceRecord, RequestRecord

FOREIGN_S = 1.0  # an engine's clock that is further off than this is not the clock of this machine


@dataclass(frozen=True, slots=True)
class Course:
    """The way of one choice through the engine, from its hand-over; None where nobody knows when."""

    start_s: float
    scheduled_s: float | None
    first_token_s: float | None
    end_s: float
    finished: bool
    tokens: int

    @property
    def decode_steps(self) -> int:
        """The first token comes out of prefill; each further one is a step."""
        return max(0, self.tokens - 1)

    @property
    def decode_s(self) -> float:
        """First token to last."""
        return 0.0 if self.first_token_s is None else self.end_s - self.first_token_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """Borders of the service's own parts, and the courses in the engine. None: it did not come that far."""

    received_s: float
    begun_s: float
    read_s: float
    parsed_s: float | None
    rendered_s: float | None
    admitted_s: float | None
    courses: tuple[Course, ...]
    end_s: float

    @property
    def begun(self) -> list[Course]:
        """Courses with a first token."""
        return [course for course in self.courses if course.first_token_s is not None]


def timeline(record: RequestRecord, now_s: float) -> Timeline:
    """What is known by `now_s`; for a request that is over, its end counts."""
    end = max(record.received_s, _end(record, now_s))
    begun = _border(record.begun_s, record.received_s, end) or record.received_s
    read = _border(record.read_s, begun, end) or begun
    parsed = _border(record.parsed_s, read, end)
    rendered = None if parsed is None else _border(record.rendered_s, parsed, end)
    handed = record.submitted_s if record.admitted_s is None else record.admitted_s
    admitted = None if rendered is None else _border(handed, rendered, end)
    return Timeline(
        received_s=record.received_s,
        begun_s=begun,
        read_s=read,
        parsed_s=parsed,
        rendered_s=rendered,
        admitted_s=admitted,
        courses=() if admitted is None else _courses(record, admitted, end),
        end_s=end,
    )


def _end(record: RequestRecord, now_s: float) -> float:
    if record.last_byte_s is not None and (record.complete or record.error is not None):
        return record.last_byte_s
    return now_s if record.closed_s is None else record.closed_s


def _border(value_s: float | None, earliest_s: float, latest_s: float) -> float | None:
    return None if value_s is None else min(max(value_s, earliest_s), latest_s)


def _courses(record: RequestRecord, start_s: float, end_s: float) -> tuple[Course, ...]:
    if not record.choices:  # it was on its way to the engine
        return (Course(start_s, None, None, end_s, finished=False, tokens=0),)
    return tuple(_course(choice, start_s, end_s) for choice in record.choices)


def _course(choice: ChoiceRecord, start_s: float, end_s: float) -> Course:
    if choice.first_delta_s is None:
        return Course(start_s, None, None, end_s, finished=False, tokens=0)
    seen_first = min(max(choice.first_delta_s, start_s), end_s)
    seen_last = min(max(choice.last_delta_s, seen_first), end_s)
    finished = choice.finish is not None
    clock = _trusted(choice.clock, start_s, choice.first_delta_s)
    if clock is None:
        return Course(
            start_s, None, seen_first, seen_last if finished else end_s, finished, choice.output_tokens
        )
    scheduled = min(max(clock.scheduled_s, start_s), seen_first)
    first = min(max(clock.first_token_s, scheduled), seen_first)
    last = min(max(clock.last_token_s, first), seen_last) if finished else end_s
    return Course(start_s, scheduled, first, last, finished, choice.output_tokens)


def _trusted(clock: EngineClock | None, start_s: float, first_delta_s: float) -> EngineClock | None:
    """The clock, unless the engine has not set it or counts from another machine's boot."""
    if clock is None or clock.scheduled_s == 0.0 or clock.first_token_s == 0.0:
        return None
    if not start_s - FOREIGN_S < clock.scheduled_s <= clock.first_token_s < first_delta_s + FOREIGN_S:
        return None
    return clock
