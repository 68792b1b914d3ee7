"""The simulator against what was measured: from three figures of a run, the others of the same run.

Both runs had the embedded model on two CPU cores. Simulated are the very requests that were sent, each at
its instant, and they are judged by what judged those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.arrivals import Crowd
from bench.planning.known import SMOLLM2
from bench.planning.replica import Replica
from bench.planning.shape import Engine, Machine
from bench.planning.traffic import Request
from bench.stats import quantile
from loadtests.arrivals import poisson
from loadtests.knee import find
from loadtests.plan import Step
from loadtests.sample import Sample
from loadtests.scenarios import Wishes, rate_step
from loadtests.slo import Slo
from loadtests.summary import rows

TOKENS, RUNNING, PATIENCE_S = 32, 16, 60.0
FIRST_WITHIN_S, WHOLE_WITHIN_S = 2.0, 10.0
WEIGHTS = SMOLLM2.layer_weights + SMOLLM2.head_weights
SAMPLED = WEIGHTS / SMOLLM2.layer_weights  # what a token that is sampled costs, in those that are only read


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, as it was and as the simulator has it."""

    name: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """By which share of the measured one the simulated one is more; below 0: less."""
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True)
class Pace:
    """What is taken from a run: how it answers one request at a time, and `RUNNING` at a time."""

    prompt: int  # tokens
    first_s: float  # until the first token of a lone answer
    whole_s: float  # until its end
    full_s: float  # until the end of an answer where there are always `RUNNING`

    def machine(self) -> Machine:
        """The cores that have this pace.

        `RUNNING` answers take as long as their prompts one by one, and a step for each further token. Such
        a step takes some time for each of them, and beside that either what a lone token takes or the
        arithmetic of all, whichever is more.
        """
        token_s = (self.whole_s - self.first_s) / (TOKENS - 1)
        step_s = (self.full_s - RUNNING * self.first_s) / (TOKENS - 1)
        read = self.prompt - 1 + SAMPLED  # the prompt's last token is sampled from
        work = RUNNING * SAMPLED / read
        moving = (step_s - token_s) / (RUNNING - 1)
        working = (step_s - work * self.first_s) / (RUNNING - work)
        sequence_s = min(moving, working)
        return machine(token_s - sequence_s, (self.first_s - sequence_s) / read, sequence_s)


def machine(moving_s: float, prompt_token_s: float, sequence_s: float = 0.0) -> Machine:
    """Two cores that read all weights in `moving_s`, and work on a token of a prompt for `prompt_token_s`.

    The one passes within the other: on the engine alone four answers take a step no longer than one, and
    several prompts are read in the time of one after the other.
    """
    flops = 2 * SMOLLM2.layer_weights / prompt_token_s
    return Machine("2 CPU cores", WEIGHTS * 2 / moving_s, flops, 2.2e9, 1.0, 0.0, sequence_s)


def run(
    pace: Pace, instants: Iterable[float], max_unfinished: int | None = None, promise_s: float | None = None
) -> list[Request]:
    """What becomes of requests that come at these instants."""
    engine = Engine(SMOLLM2, pace.machine(), RUNNING, 2048, 128, 46592)
    requests = [Request(at, 0, 0, pace.prompt, TOKENS) for at in instants]
    Replica(engine, max_unfinished, promise_s, PATIENCE_S).run(requests)
    return requests


# `python -m loadtests --seconds 30`: one user and sixteen, then every step of a sweep from 1/s on.
LOADED = Pace(prompt=71, first_s=0.1199, whole_s=1.2095, full_s=4.876)
LOADED_S, LOADED_SEED = 30.0, 1
SWEEP = {  # by requests/s: TTFT and TPOT, p50 in ms
    1.0: (167, 57.4),
    2.0: (168, 59.9),
    2.8284271247461903: (258, 111),
    3.3635856610148585: (931, 130),
    3.668016172818685: (558, 143),
    4.0: (762, 138),
}
MOST_PER_S = 3.73


def load_test() -> Iterator[Figure]:
    """A load test of Twophase, which refuses whom it would not answer within its promise; and the most load
    of which nine in ten answers are good."""
    steps = [
        replace(rate_step(Wishes(step_s=LOADED_S), rate), number=number) for number, rate in enumerate(SWEEP)
    ]
    slo = Slo()
    found = rows(steps, [sample for step in steps for sample in _samples(step)], slo.good)
    for row in found:
        for measure, was in zip(("ttft", "tpot"), SWEEP[row.step.rate_per_s], strict=True):
            simulated = row.value(f"{measure}_p50_ms") or 0.0
            yield Figure(f"{row.step.name}: {measure.upper()} p50, ms", was, simulated)
    knee = find(found, slo.hold_share)
    yield Figure("most answered well, requests/s", MOST_PER_S, knee.rate if knee else 0.0)


def _samples(step: Step) -> Iterator[Sample]:
    """What the load test would have kept of a step."""
    instants = poisson(step.rate_per_s, step.length_s, f"{LOADED_SEED}/{step.part}/{step.name}")
    for number, it in enumerate(run(LOADED, instants, promise_s=FIRST_WITHIN_S)):
        sample = Sample(step.number, number, "chat", it.at, it.at, outcome="refused")
        if it.ended is not None:
            sample.outcome, sample.tokens = "ok", it.output
            sample.first_ms = it.ttft_s * 1000
            sample.last_ms = sample.end_ms = it.total_s * 1000
        yield sample


# Turns of `bench.overload` at these rates, and once more: each turn has a seed of its own, from the first on.
OVERLOADED = Pace(prompt=47, first_s=0.0862, whole_s=1.145, full_s=4.10)
OVERLOADED_S, FIRST_SEED, RATES = 25.0, 2, (2, 3, 4, 8)
ENDLESS = ((1.78, 0.12), (2.96, 0.156), (3.60, 0.348), (0.74, 12.7))  # good answers/s, TTFT p50 in s
SIX = ((1.64, 0.123), (2.24, 0.132), (2.62, 0.142), (2.92, 0.144))


def overload() -> Iterator[Figure]:
    """`vllm serve`, as it comes and with `--max-num-queued-reqs 6`: that many at a time, those that run
    among them. Two turns at each rate, taken together."""
    for label, limit, seen in (("", None, ENDLESS), (", six at a time", 6, SIX)):
        for number, (good_per_s, ttft_s) in enumerate(seen):
            rate, requests = RATES[number], _crowds(number, limit)
            yield Figure(f"{rate}/s{label}: good answers/s", good_per_s, _good_per_s(requests))
            yield Figure(f"{rate}/s{label}: TTFT p50, s", ttft_s, _ttft_s(requests))


def _crowds(number: int, max_unfinished: int | None) -> list[Request]:
    """The requests of both turns at a rate."""
    seeds = (FIRST_SEED + number, FIRST_SEED + number + len(RATES))
    crowds = (Crowd(RATES[number], OVERLOADED_S, TOKENS, PATIENCE_S, seed, 0, "") for seed in seeds)
    return [it for crowd in crowds for it in run(OVERLOADED, crowd.schedule(), max_unfinished)]


def _good_per_s(requests: Sequence[Request]) -> float:
    good = sum(it.ttft_s <= FIRST_WITHIN_S and it.total_s <= WHOLE_WITHIN_S for it in requests)
    return good / (2 * OVERLOADED_S)


def _ttft_s(requests: Sequence[Request]) -> float:
    return quantile([it.ttft_s for it in requests if it.first is not None], 0.5)
