"""The simulator against what was measured: from a few figures of one run, the others of the same run.

Both runs had the embedded model on two CPU cores that other work had a share of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.planning.known import SMOLLM2
from bench.planning.replica import Replica
from bench.planning.shape import Engine, Machine
from bench.planning.traffic import Mix, Request, arrivals
from bench.stats import quantile

OUTPUT_TOKENS, RUNNING, SEEDS = 32, 16, 20
FIRST_WITHIN_S, WHOLE_WITHIN_S = 2.0, 10.0
WEIGHTS = SMOLLM2.layer_weights + SMOLLM2.head_weights
OPERATIONS = 2 * WEIGHTS  # for a token that is sampled


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


def machine(alone_s: float, prompt_token_s: float, sequence_s: float = 0.0) -> Machine:
    """Two cores that write a lone answer at `alone_s` a token, and read a prompt at `prompt_token_s`."""
    flops = 2 * SMOLLM2.layer_weights / prompt_token_s
    moving_s = alone_s - OPERATIONS / flops - sequence_s
    return Machine("2 CPU cores", WEIGHTS * 2 / moving_s, flops, 2.2e9, 0.0, 0.0, sequence_s)


def run(
    on: Machine, rate: float, prompt: int, seconds: float, max_waiting: int | None = None
) -> list[list[Request]]:
    """Several runs that differ in their arrivals alone."""
    engine = Engine(SMOLLM2, on, RUNNING, 2048, 128, 46592)
    runs = []
    for seed in range(SEEDS):
        requests = list(arrivals(Mix("chat", prompt, OUTPUT_TOKENS), rate, seconds, seed, [0], [1.0]))
        Replica(engine, max_waiting).run(requests)
        runs.append(requests)
    return runs


def _ttft_s(runs: Sequence[Sequence[Request]]) -> float:
    return quantile([it.ttft_s for requests in runs for it in requests if it.first is not None], 0.5)


def _tpot_s(runs: Sequence[Sequence[Request]]) -> float:
    ended = [it for requests in runs for it in requests if it.ended is not None]
    return quantile([(it.total_s - it.ttft_s) / (it.output - 1) for it in ended], 0.5)


def _good(runs: Sequence[Sequence[Request]]) -> int:
    return sum(
        it.ttft_s <= FIRST_WITHIN_S and it.total_s <= WHOLE_WITHIN_S for requests in runs for it in requests
    )


def load_test() -> Iterator[Figure]:
    """A run of `make loadtest` on Twophase, the example in loadtests/: prompts of 71 tokens.

    The step at 1.47 requests/s gives the pace: 20.6 ms a token, 58.3 ms to read a prompt, and 6.9 ms of the
    first token's time outside the engine. What follows from these for the steps under more load, and for the
    most load of which nine in ten answers are good?
    """
    alone_s, reading_s, outside_s, prompt = 0.0206, 0.0583, 0.0069, 71
    on = machine(alone_s, (reading_s - alone_s) / prompt)
    for rate, ttft_ms, tpot_ms in ((2.94, 89.7, 26.8), (5.88, 119.3, 38.5), (8.32, 131.5, 45.5)):
        runs = run(on, rate, prompt, 10)
        yield Figure(f"{rate}/s: TTFT p50, ms", ttft_ms, (_ttft_s(runs) + outside_s) * 1000)
        yield Figure(f"{rate}/s: TPOT p50, ms", tpot_ms, _tpot_s(runs) * 1000)
    yield Figure("most answered well, requests/s", 8.52, _knee(on, prompt))


def _knee(on: Machine, prompt: int) -> float:
    low, high = 1.0, 40.0
    while high - low > 0.1:
        rate = (low + high) / 2
        runs = run(on, rate, prompt, 40)
        held = _good(runs) >= 0.9 * sum(map(len, runs))
        low, high = (rate, high) if held else (low, rate)
    return low


def overload() -> Iterator[Figure]:
    """`vllm serve`, as it comes and with a line of six: good answers a second, and TTFT.

    For 25 s requests arrive, with prompts of 47 tokens.

    Its pace: 17 tokens/s alone, 135 for 32 at once, a first token of 37 tokens after 0.15 s; and, since other
    work ran beside it in this run, slower by a factor that the TTFT at 4 requests/s gives.
    """
    alone_s, seconds, prompt = 1 / 17, 25.0, 47
    each_s = (0.15 - alone_s) / 37
    more_s = (32 / 135 - alone_s) / 31  # for each further answer in a step
    usual = machine(alone_s, each_s, more_s - each_s * WEIGHTS / SMOLLM2.layer_weights)
    on = usual.slower(_factor(usual, prompt, seconds, rate=4, ttft_s=12.8))
    for rate, good, ttft_s in ((2, 1.48, 1.1), (3, 0.64, 6.9), (4, 0.60, None), (8, 0.28, 38.0)):
        runs = run(on, rate, prompt, seconds)
        yield Figure(f"{rate}/s: good answers/s", good, _good(runs) / SEEDS / seconds)
        if ttft_s is not None:
            yield Figure(f"{rate}/s: TTFT p50, s", ttft_s, _ttft_s(runs))
    for rate, good in ((2, 1.44), (4, 1.56), (8, 1.92)):
        runs = run(on, rate, prompt, seconds, max_waiting=6)
        yield Figure(f"{rate}/s, a line of 6: good answers/s", good, _good(runs) / SEEDS / seconds)


def _factor(usual: Machine, prompt: int, seconds: float, rate: float, ttft_s: float) -> float:
    low, high = 0.5, 3.0
    while high - low > 0.01:
        factor = (low + high) / 2
        early = _ttft_s(run(usual.slower(factor), rate, prompt, seconds)) < ttft_s
        low, high = (factor, high) if early else (low, factor)
    return low
