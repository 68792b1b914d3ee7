"""From a record to its phases: the one place where times become figures, for whoever tells them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from service.prompt.difference import Miss
from service.telemetry.record import RequestRecord
from service.telemetry.timeline import Timeline, timeline

BoundBy = Literal["queue", "prefill", "decode", "client", "service"]


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of one request went. Times are milliseconds; None: it did not come that far.

    With n answers, which the engine makes side by side: `queue` ends when the first of them is
    scheduled, `prefill` with the first token of any, `decode` with the last token of all. Steps are
    the sum over the answers, and `tpot_ms` is the pace within one of them.
    """

    render_ms: float | None
    admission_ms: float | None
    queue_ms: float | None  # from the slot to the engine's first work, the way to the engine included
    prefill_ms: float | None  # to the first token; an engine without a clock has the queue in it
    decode_ms: float | None  # first token to last
    first_token_ms: float | None  # request to the service's first token, streamed or not
    ttft_ms: float | None  # request to the first content the client can read: all of it when not streamed
    total_ms: float
    tpot_ms: float  # 0 without decode steps
    decode_steps: int
    reasoning_tokens: int  # of the output: thought before the answer, and seen by few
    computed_tokens: int
    cached_tokens: int
    preemptions: int
    bound_by: BoundBy | None  # None without a token
    forecast_tokens: int | None = None  # what `cached_tokens` was expected to be; None: nobody knew
    miss: Miss | None = None  # why it was not expected to be more

    def report(self) -> dict[str, Any]:
        """The object `phases` of response bodies and usage chunks."""
        return {
            "render_ms": _rounded(self.render_ms),
            "admission_ms": _rounded(self.admission_ms),
            "queue_ms": _rounded(self.queue_ms),
            "prefill_ms": _rounded(self.prefill_ms),
            "decode_ms": _rounded(self.decode_ms),
            "ttft_ms": _rounded(self.ttft_ms),
            "total_ms": _rounded(self.total_ms),
            "tpot_ms": _rounded(self.tpot_ms),
            "decode_steps": self.decode_steps,
            "reasoning_tokens": self.reasoning_tokens,
            "computed_tokens": self.computed_tokens,
            "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions,
            "bound_by": self.bound_by,
            "cache": {
                "forecast_tokens": self.forecast_tokens,
                "cached_tokens": self.cached_tokens,
                "miss": None if self.miss is None else self.miss.report(),
            },
        }

    def server_timing(self) -> str:
        """The value of a `Server-Timing` header."""
        named = self.named() | {"total": self.total_ms}
        return ", ".join(f"{name};dur={ms:.3f}" for name, ms in named.items() if ms is not None)

    def named(self) -> dict[str, float | None]:
        """The phases by name, in the order in which a request goes through them."""
        return {
            "render": self.render_ms,
            "admission": self.admission_ms,
            "queue": self.queue_ms,
            "prefill": self.prefill_ms,
            "decode": self.decode_ms,
        }


def phases(record: RequestRecord, now_s: float) -> Phases:
    """The phases of a request that is over, or so far: the usage chunk needs them before the last byte.

    `bound_by` is the largest of five shares, which together are the whole time:

    - **queue**: waiting for others, from the prompt's being ready to the engine's first work on it;
    - **prefill** and **decode**: the engine at work; where the engine keeps no clock, the wait for
      the first token counts as prefill;
    - **client**: sending its body, and leaving bytes unread after the engine had ended. While the
      engine still writes, a slow reader costs no time: the engine does not wait for it;
    - **service**: the rest, which is parsing, rendering and handing over.
    """
    return derive(record, timeline(record, now_s))


def derive(record: RequestRecord, times: Timeline) -> Phases:
    """The same, from a timeline that is already there."""
    begun = times.begun
    prompt = record.budget.prompt_tokens if record.budget is not None and begun else 0
    scheduled = _earliest(course.scheduled_s for course in begun)
    first = _earliest(course.first_token_s for course in begun)
    last = max((course.end_s for course in begun), default=None)
    steps = sum(course.decode_steps for course in begun)
    return Phases(
        render_ms=_ms(times.parsed_s, times.end_s if times.rendered_s is None else times.rendered_s),
        admission_ms=_ms(times.rendered_s, times.end_s if times.admitted_s is None else times.admitted_s),
        queue_ms=_ms(times.admitted_s, scheduled),
        prefill_ms=_ms(times.admitted_s if scheduled is None else scheduled, first),
        decode_ms=_ms(first, last),
        first_token_ms=_ms(times.received_s, record.first_token_s),
        ttft_ms=_ms(times.received_s, _first_content(record, times)),
        total_ms=1e3 * (times.end_s - times.received_s),
        tpot_ms=1e3 * sum(course.decode_s for course in begun) / steps if steps else 0.0,
        decode_steps=steps,
        reasoning_tokens=record.reasoning_tokens,
        computed_tokens=max(0, prompt - record.cached_tokens),
        cached_tokens=record.cached_tokens,
        preemptions=sum(len(choice.preempted_s) for choice in record.choices),
        bound_by=_bound_by(record, times, scheduled, first, last),
        forecast_tokens=record.forecast_tokens,
        miss=record.miss,
    )


def _bound_by(
    record: RequestRecord,
    times: Timeline,
    scheduled_s: float | None,
    first_s: float | None,
    last_s: float | None,
) -> BoundBy | None:
    if times.rendered_s is None or times.admitted_s is None or first_s is None or last_s is None:
        return None
    work = times.admitted_s if scheduled_s is None else scheduled_s
    upload = times.read_s - times.begun_s
    unread = 0.0
    if record.complete:
        late = record.waited_for_client(times.end_s) - record.engine_end_wait_s
        unread = min(max(0.0, late), times.end_s - last_s)
    shares: dict[BoundBy, float] = {
        "queue": work - times.rendered_s,
        "prefill": first_s - work,
        "decode": last_s - first_s,
        "client": upload + unread,
    }
    shares["service"] = times.end_s - times.received_s - sum(shares.values())
    return max(shares, key=shares.__getitem__)


def _first_content(record: RequestRecord, times: Timeline) -> float | None:
    """An answer that is sent whole, or that has no text, is there for its reader at the end."""
    if record.first_content_s is not None:
        return min(max(record.first_content_s, times.received_s), times.end_s)
    return times.end_s if record.complete else None


def _earliest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else 1e3 * max(0.0, end_s - start_s)


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
