"""Many replicas behind a router, seen through a sample of them.

With the two ways of routing that are modelled a replica's load does not depend on how the others are at
the moment, so that a few of them, each with exactly its own share of the requests, tell of ten thousand.

random    every request to any replica: each sees requests of all groups
affinity  a group's requests to one replica, or to as many as its share of the load asks for, each chosen as
          the less loaded of two that were drawn: what a hash with a look at the load comes to
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil
from typing import Literal

from bench.planning.replica import Replica
from bench.planning.shape import Engine
from bench.planning.traffic import Mix, Request, arrivals
from bench.stats import quantile

Routing = Literal["random", "affinity"]

SAMPLE = 24  # replicas looked at
WARM_S, SEEN_S = 40.0, 40.0  # until the caches are as they stay, and from then on
PARTS = 2  # a group is spread until each part is at most half of what one replica gets on average


@dataclass(frozen=True, slots=True)
class Promise:
    """What makes an answer good, and how many must be."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    share: float = 0.95

    def kept(self, request: Request) -> bool:
        """Whether one answer was good."""
        writing_s = request.total_s - request.ttft_s if request.ended is not None else float("inf")
        return request.ttft_s <= self.ttft_s and writing_s <= self.tpot_s * max(1, request.output - 1)


@dataclass(frozen=True)
class Seen:
    """The requests of the sampled replicas, without those of the time in which caches were cold."""

    requests: Sequence[Request]
    promise: Promise

    @cached_property
    def good(self) -> float:
        """The share of good answers."""
        return sum(map(self.promise.kept, self.requests)) / max(1, len(self.requests))

    @cached_property
    def cached(self) -> float:
        """The share of prompt tokens that were not computed."""
        started = [it for it in self.requests if it.first is not None]
        return sum(it.cached for it in started) / max(1, sum(it.prompt for it in started))

    def ttft_s(self, share: float) -> float:
        """A quantile of the time to first token, of all that got one."""
        return quantile([it.ttft_s for it in self.requests if it.first is not None] or [float("inf")], share)


def look(
    engine: Engine,
    mix: Mix,
    rate: float,
    replicas: int,
    routing: Routing,
    promise: Promise,
    seed: int = 1,
) -> Seen:
    """What callers of a fleet would see at `rate` requests a second in all."""
    chosen = random.Random(seed).sample(range(replicas), min(SAMPLE, replicas))
    shares = mix.shares()
    own = _assigned(shares, replicas, set(chosen), seed) if routing == "affinity" else None
    seen: list[Request] = []
    everybody: tuple[Sequence[int], list[float]] = (range(mix.groups), list(accumulate(shares)))
    for replica in chosen:
        if own is None:
            groups, bounds = everybody
            its_rate = rate / replicas
        else:
            groups, bounds = list(own[replica]), list(accumulate(own[replica].values()))
            its_rate = rate * sum(own[replica].values())
        if its_rate:
            requests = list(arrivals(mix, its_rate, WARM_S + SEEN_S, seed * 7919 + replica, groups, bounds))
            Replica(engine).run(requests)
            seen += [it for it in requests if it.at >= WARM_S]
    return Seen(seen, promise)


def needed(
    engine: Engine, mix: Mix, rate: float, routing: Routing, promise: Promise, seed: int = 1
) -> int | None:
    """The fewest replicas that keep the promise, to about two per cent; None where not even a lone
    request's is kept.

    More replicas are never worse here, so the answer lies between two numbers that close in on each other.
    """
    if look(engine, mix, 0.02 * SAMPLE, SAMPLE, routing, promise, seed).good < promise.share:
        return None
    few = int(rate / most_per_replica(engine, mix))
    many = max(1, 2 * few)
    while look(engine, mix, rate, many, routing, promise, seed).good < promise.share:
        few, many = many, many * 2
    while many - few > max(1, many // 50):
        middle = (few + many) // 2
        if look(engine, mix, rate, middle, routing, promise, seed).good < promise.share:
            few = middle
        else:
            many = middle
    return many


def most_per_replica(engine: Engine, mix: Mix) -> float:
    """Requests a second that nobody can do more of: every prefix cached, every step full."""
    running = max(1, min(engine.max_running, engine.kv_tokens // (mix.prompt_tokens + mix.output_tokens)))
    context = running * (mix.prefix_tokens + mix.prompt_tokens + mix.output_tokens / 2)
    nothing_s = engine.step_seconds(0, 0)
    reading_s = engine.step_seconds(0, 0, mix.prompt_tokens, mix.prefix_tokens) - nothing_s
    writing_s = mix.output_tokens * engine.step_seconds(running, context) / running
    return 1 / ((1 - engine.machine.overlap) * max(0.0, reading_s) + writing_s)


def _assigned(
    shares: Sequence[float], replicas: int, wanted: set[int], seed: int
) -> dict[int, dict[int, float]]:
    """For each wanted replica the groups it gets, and how much of all requests each of them brings it."""
    draw = random.Random(seed)
    load = [0.0] * replicas
    own: dict[int, dict[int, float]] = {replica: {} for replica in wanted}
    for group, share in enumerate(shares):
        parts = min(replicas, max(1, ceil(share * replicas * PARTS)))
        for _ in range(parts):
            one, other = draw.randrange(replicas), draw.randrange(replicas)
            place = one if load[one] <= load[other] else other
            load[place] += share / parts
            if place in own:
                own[place][group] = own[place].get(group, 0.0) + share / parts
    return own
