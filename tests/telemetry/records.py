"""Records written by hand: every time is a round number of seconds after the request came in."""

from __future__ import annotations

from service.budget.plan import Budget
from service.engine.protocol import EngineClock, Finish
from service.errors import ServiceError
from service.telemetry.record import ChoiceRecord, RequestRecord

START_S = 5000.0  # on the monotonic clock
WALL_OFFSET_S = 1_800_000_000.0


def budget(prompt_tokens: int = 100, max_output_tokens: int = 64, **changes: object) -> Budget:
    """A budget in a window of 4,096."""
    fields: dict[str, object] = {
        "context_window": 4096,
        "input_limit": 4095,
        "input_limited_by": "window",
        "output_limit": 4096 - prompt_tokens,
        "output_limited_by": "window",
        "prompt_tokens": prompt_tokens,
        "template_tokens": 20,
        "max_output_tokens": max_output_tokens,
    }
    return Budget(**{**fields, **changes})  # type: ignore[arg-type]


def choice(
    scheduled: float = 0.2,
    first: float = 1.0,
    last: float = 4.0,
    *,
    tokens: int = 31,
    finish: Finish | None = "stop",
    cached: int = 0,
    preempted: tuple[float, ...] = (),
    clock: bool = True,
) -> ChoiceRecord:
    """An answer whose deltas reached the service 1 ms after the engine had made them."""
    engine = EngineClock(
        START_S + 0.1, START_S + scheduled, START_S + first, START_S + last, cached, len(preempted)
    )
    return ChoiceRecord(
        first_delta_s=START_S + first + 0.001,
        last_delta_s=START_S + last + 0.001,
        output_tokens=tokens,
        finish=finish,
        clock=engine if clock else None,
        preempted_s=[START_S + at for at in preempted],
    )


def waiting_choice() -> ChoiceRecord:
    """An answer without a token yet."""
    return ChoiceRecord()


def record(
    *choices: ChoiceRecord,
    read: float | None = 0.001,
    parsed: float | None = 0.002,
    rendered: float | None = 0.01,
    admitted: float | None = 0.02,
    submitted: float | None = 0.022,
    first_content: float | None = None,
    last_byte: float | None = None,
    closed: float | None = None,
    prompt_tokens: int | None = 100,
    error: ServiceError | None = None,
    client_left: bool = False,
    stream: bool = True,
    status: int | None = 200,
) -> RequestRecord:
    """A request that came as far as its times say."""

    return RequestRecord(
        "req-1",
        received_s=START_S,
        wall_offset_s=WALL_OFFSET_S,
        model="tiny",
        response_id="chatcmpl-1",
        stream=stream,
        n=max(1, len(choices)),
        read_s=_at(read),
        parsed_s=_at(parsed),
        rendered_s=_at(rendered),
        admitted_s=_at(admitted),
        submitted_s=_at(submitted),
        first_content_s=_at(first_content),
        last_byte_s=_at(last_byte),
        closed_s=_at(closed),
        status=status,
        budget=None if prompt_tokens is None else budget(prompt_tokens),
        choices=list(choices),
        error=error,
        client_left=client_left,
    )


def _at(seconds: float | None) -> float | None:
    return None if seconds is None else START_S + seconds


def answered(*choices: ChoiceRecord, end: float = 4.003, **changes: object) -> RequestRecord:
    """A streamed answer that went well: 0.2 s queue, 0.8 s prefill, 3 s decode, 31 tokens."""
    made = choices or (choice(),)
    first = min(one.first_delta_s for one in made if one.first_delta_s is not None) - START_S
    fields: dict[str, object] = {"first_content": first + 0.001, "last_byte": end, "closed": end + 0.001}
    return record(*made, **{**fields, **changes})  # type: ignore[arg-type]


def refused(error: ServiceError, at: float = 0.004, **changes: object) -> RequestRecord:
    """A request refused while its prompt was being rendered."""
    fields: dict[str, object] = {
        "rendered": None,
        "admitted": None,
        "submitted": None,
        "prompt_tokens": None,
        "status": error.status,
        "last_byte": at,
        "closed": at,
        "error": error,
    }
    return record(**{**fields, **changes})  # type: ignore[arg-type]


def abandoned(*choices: ChoiceRecord, at: float = 2.0, **changes: object) -> RequestRecord:
    """A request whose client left."""
    return record(*choices, closed=at, client_left=True, **changes)  # type: ignore[arg-type]
