"""Which steps a scenario consists of. The sweep alone decides as it goes: that is in `loadtests.sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadtests.plan import Step

SETTLE = 0.15  # of a step, until its load is what it is meant to be
FIRST_S = 1.0
BURST = 5.0
OVERLOAD = 4.0
LENGTHS = (50, 200, 800, 2000)
FEW = 8  # requests, where one after another is enough
AFTER_SIGNAL = "after the signal"
AFTER = 0.5  # of a step's length: what comes after a burst


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user chose."""

    workload: str = "chat"
    users: Sequence[int] = (1, 2, 4, 8, 16)
    rates: Sequence[float] = (0.5, 1.0, 2.0, 4.0)
    rate: float = 1.0
    step_s: float = 20.0
    pause_s: float = 5.0
    leave: float = 0.5


SCENARIOS = {
    "full": "a bit of everything, for a whole report: streaming, lengths, concurrency, sweep",
    "closed": "users who send one request after another: 1, 2, 4, … (--users)",
    "open": "requests that arrive on their own, at each of --rates",
    "sweep": "find the highest rate that is still answered well, and what limits it",
    "steady": "one --rate for --seconds",
    "burst": f"--rate, {BURST:g} times as much, and --rate again",
    "overload": f"{OVERLOAD:g} times --rate: are refusals quick, and answers still in time?",
    "disconnects": "half of the clients leave early (--leave); does the server let go of their work?",
    "drain": "SIGTERM to the server in the middle: running answers end, new requests are refused",
    "lengths": "prompts of growing length, one at a time",
    "streaming": "the same requests streamed and whole",
}


def steps(scenario: str, wishes: Wishes) -> list[Step]:
    """The steps known before the run, in order; none for a sweep."""
    found: list[Step] = []
    for step in _MAKERS[scenario](wishes):
        at_s = found[-1].end_s + step.start_s if found else FIRST_S
        found.append(replace(step, number=len(found), start_s=at_s))
    return found


def closed(wishes: Wishes) -> Iterator[Step]:
    """Start times here and below are pauses after the step before."""
    for users in wishes.users:
        yield _step("concurrency", f"{users} user{'s' * (users > 1)}", wishes, users=users)


def open_(wishes: Wishes) -> Iterator[Step]:
    """One step for each rate."""
    for rate in wishes.rates:
        yield rate_step(wishes, rate)


def rate_step(wishes: Wishes, rate: float) -> Step:
    """A step of the open loop."""
    return _step("rate", f"{rate:.3g}/s", wishes, rate=rate)


def _step(part: str, name: str, wishes: Wishes, *, users: int = 0, rate: float = 0.0) -> Step:
    settle_s = wishes.step_s * SETTLE
    return Step(0, part, name, wishes.workload, wishes.pause_s, wishes.step_s, users, rate, settle_s=settle_s)


def _steady(wishes: Wishes) -> Iterator[Step]:
    yield _step("steady", "steady", wishes, rate=wishes.rate)


def _burst(wishes: Wishes) -> Iterator[Step]:
    parts = (("before", 1.0, AFTER), ("burst", BURST, AFTER), ("after", 1.0, 1.0))
    for name, times, length in parts:
        step = _step("burst", name, wishes, rate=wishes.rate * times)
        yield replace(step, start_s=0.0, length_s=wishes.step_s * length, settle_s=0.0)


def _overload(wishes: Wishes) -> Iterator[Step]:
    yield _step("overload", f"{OVERLOAD:g} × {wishes.rate:g}/s", wishes, rate=wishes.rate * OVERLOAD)
    yield _step("overload", "after", wishes, rate=wishes.rate)


def _disconnects(wishes: Wishes) -> Iterator[Step]:
    step = _step("disconnects", "clients leave", wishes, rate=wishes.rate)
    yield replace(step, workload=f"{wishes.workload},leave={wishes.leave:g}", settle_s=0.0)
    yield _step("disconnects", "after", wishes, rate=wishes.rate)


def _drain(wishes: Wishes) -> Iterator[Step]:
    yield replace(_step("drain", "until the signal", wishes, rate=wishes.rate), settle_s=0.0)
    after = _step("drain", AFTER_SIGNAL, wishes, rate=wishes.rate)
    yield replace(after, start_s=0.0, length_s=wishes.step_s * AFTER, settle_s=0.0)


def _lengths(wishes: Wishes) -> Iterator[Step]:
    for words in LENGTHS:
        yield _few("length", f"{words} words", f"long-prompt,words={words}", wishes)


def _streaming(wishes: Wishes) -> Iterator[Step]:
    yield _few("streaming", "streamed", f"{wishes.workload},stream=1", wishes)
    yield _few("streaming", "whole", f"{wishes.workload},stream=0", wishes)


def _few(part: str, name: str, workload: str, wishes: Wishes) -> Step:
    return Step(0, part, name, workload, 1.0, wishes.step_s, users=1, requests=FEW)


def _full(wishes: Wishes) -> Iterator[Step]:
    yield from _streaming(wishes)
    yield from _lengths(wishes)
    yield from closed(wishes)


def _nothing(_: Wishes) -> Iterator[Step]:
    yield from ()


_MAKERS = {
    "full": _full,
    "closed": closed,
    "open": open_,
    "sweep": _nothing,
    "steady": _steady,
    "burst": _burst,
    "overload": _overload,
    "disconnects": _disconnects,
    "drain": _drain,
    "lengths": _lengths,
    "streaming": _streaming,
}
