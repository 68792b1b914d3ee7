"""Who is refused by admission, in which words, and when to come back."""

from __future__ import annotations

import math

from service.admission.load import Prediction
from service.errors import CapacityError, DeadlineExceeded, DeadlineUnreachable, Draining, Overloaded

LONGEST_RETRY_S = 600


def too_late(prediction: Prediction, left_s: float | None, slo_s: float | None) -> CapacityError | None:
    """The refusal of a request whose first token would come too late, if it is known that it would.

    A caller's deadline, `left_s` from now, is for everything. Without one, the promise `slo_s` is
    about waiting for others: a long prompt on a slow machine breaks no promise.
    """
    if left_s is not None:
        return _unreachable(prediction, left_s)
    waits_s = prediction.for_others_s
    if slo_s is None or waits_s is None or waits_s + prediction.margin_s <= slo_s:
        return None
    late_s = waits_s + prediction.margin_s
    return Overloaded(
        f"This service is full: the first token may come {_s(late_s)} later than on an idle service, "
        f"and {_s(slo_s)} is the most it lets anybody wait.",
        retry_after_s=_seconds(late_s - slo_s),
    )


def no_room(waiting: int, prediction: Prediction, slo_s: float | None) -> Overloaded:
    """The line is full."""
    return Overloaded(
        f"This service is full: {waiting} requests wait, and no more may.",
        retry_after_s=_when(prediction, slo_s or 0.0),
    )


def outwaited(waited_s: float, prediction: Prediction) -> Overloaded:
    """No slot has come in the longest time that anybody waits."""
    return Overloaded(
        f"This service is full: no place has become free in {_s(waited_s)}.",
        retry_after_s=_when(prediction, waited_s),
    )


def past_deadline() -> DeadlineExceeded:
    """The caller's deadline has passed before anything was written."""
    return DeadlineExceeded("The deadline of this request has passed before it could begin.")


def draining() -> Draining:
    """The service goes down."""
    return Draining("The service is shutting down and takes no new requests; retry elsewhere.")


def _unreachable(prediction: Prediction, left_s: float) -> DeadlineUnreachable | None:
    first_s = prediction.first_token_s
    if first_s is None or first_s + prediction.margin_s <= left_s:
        return None
    latest_s = first_s + prediction.margin_s
    return DeadlineUnreachable(
        f"The first token may take {_s(latest_s)}, and this request's deadline is in {_s(left_s)}.",
        retry_after_s=_seconds(latest_s - left_s),
    )


def _when(prediction: Prediction, bearable_s: float) -> int | None:
    """When the wait will have shrunk to a bearable one; None leaves it to the error's own default."""
    if prediction.queue_s is None:
        return None
    return _seconds(prediction.queue_s + prediction.margin_s - bearable_s)


def _seconds(wait_s: float) -> int:
    return max(1, min(LONGEST_RETRY_S, math.ceil(wait_s)))


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s"
