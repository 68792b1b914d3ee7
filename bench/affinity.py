"""`python -m bench.affinity`: what prefix affinity keeps cached on two replicas behind Ray Serve.

The same requests are asked of one replica, and of two with our routing, with Serve's own, which knows loads
and no prefixes, and with random routing, which knows nothing. Each replica has the same cache. Three loads:
eight shared prefixes, which fit every cache; more prefixes than one cache holds; a mix with conversations and
short requests, its prefixes uneven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.child import BenchError
from bench.fleet import Fleet, install, running
from bench.random_model import make
from bench.shapes import WORDS

STREAMS = 8
TOKENS = 24
PREFIX_WORDS = 800  # some 1,000 tokens
TAIL_WORDS = 30
KV_BYTES = 6 * 2**20  # some 24,000 tokens: about 22 prefixes
TWO = {"autoscaling_config": {"min_replicas": 2, "max_replicas": 2}}
OWN = {"request_router_config": None}
RANDOM = {"request_router_config": {"request_router_class": "bench.random_router:RandomRouter"}}
LEAST_SHARE = 0.9  # of a single replica's cached share, for the eight prefixes
MOST_IMBALANCE = 1.5  # of the loads of two replicas, in the mix
INPUT, CACHED, OUTPUT = (
    f'twophase_tokens_total{{kind="{it}"}}' for it in ("input", "cached_input", "output")
)
REQUESTS = 'twophase_requests_total{outcome="ok"}'

Talk = list[dict[str, str]]


@dataclass(frozen=True)
class Result:
    """What one load came to on one fleet."""

    fleet: str
    load: str
    cached_share: float  # of all prompt tokens
    ttft_p50_ms: float
    requests: list[int]  # of each replica
    work: list[int]  # tokens computed by each replica: prompt and answer

    @property
    def imbalance(self) -> float:
        """How many times the load of the idler replica the busier one had: by requests or by work."""
        return max(max(of) / max(1, min(of)) for of in (self.requests, self.work))


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS.split(), k=count))


def shared(prefixes: int, times: int, *, seed: int) -> list[list[Talk]]:
    """Conversations of one turn: each prefix asked so many times, in a random order."""
    draw = random.Random(seed)
    systems = [words(draw, PREFIX_WORDS) for _ in range(prefixes)]
    asked = [system for system in systems for _ in range(times)]
    draw.shuffle(asked)
    return [[_turn(system, words(draw, TAIL_WORDS))] for system in asked]


def mixed(*, seed: int) -> list[list[Talk]]:
    """Prefixes asked for unevenly, conversations of several turns, and short requests with nothing shared."""
    draw = random.Random(seed)
    systems = [words(draw, PREFIX_WORDS) for _ in range(12)]
    weights = [1 / rank for rank in range(1, 13)]
    found: list[list[Talk]] = []
    for _ in range(60):
        (system,) = draw.choices(systems, weights)
        found.append([_turn(system, words(draw, TAIL_WORDS))])
    for _ in range(20):
        system = words(draw, draw.choice((50, 200, 600)))
        found.append([_turn(system, words(draw, draw.choice((20, 100)))) for _ in range(draw.choice((2, 4)))])
    found += [[[{"role": "user", "content": words(draw, 12)}]] for _ in range(40)]
    draw.shuffle(found)
    return found


def _turn(system: str, said: str) -> Talk:
    return [{"role": "system", "content": system}, {"role": "user", "content": said}]


LOADS = {
    "8 prefixes": shared(8, 6, seed=1),
    "40 prefixes": shared(40, 4, seed=2),
    "mixed": mixed(seed=3),
}
FLEETS: dict[str, dict[str, Any]] = {
    "one replica": {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}},
    "two, affinity": TWO,
    "two, Serve's own": {**TWO, **OWN},
    "two, random": {**TWO, **RANDOM},
}


async def ask(url: str, talks: Sequence[Sequence[Talk]]) -> tuple[float, float]:
    """Go through all conversations, so many at a time; the cached share and the median first token."""
    todo = iter(talks)
    prompt, cached, firsts = 0, 0, []

    async def caller(client: httpx.AsyncClient) -> None:
        nonlocal prompt, cached
        for talk in todo:
            history: Talk = []
            for turn in talk:
                history += turn if not history else turn[1:]
                answer, usage, phases = await _answer(client, history)
                history.append({"role": "assistant", "content": answer})
                prompt += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                firsts.append(phases["ttft_ms"])

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(caller(client) for _ in range(STREAMS)))
    return cached / prompt, sorted(firsts)[len(firsts) // 2]


async def _answer(client: httpx.AsyncClient, history: Talk) -> tuple[str, dict[str, Any], dict[str, float]]:
    body = {"messages": history, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    response = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    return response["choices"][0]["message"]["content"], response["usage"], response["phases"]


def measure(name: str, fleet: Fleet) -> list[Result]:
    found = []
    for load, talks in LOADS.items():
        before = fleet.sums(INPUT, CACHED, OUTPUT, REQUESTS)
        share, ttft_ms = asyncio.run(ask(fleet.url, talks))
        after = fleet.sums(INPUT, CACHED, OUTPUT, REQUESTS)
        came = [{key: now[key] - before[one][key] for key in now} for one, now in after.items()]
        work = [int(it[INPUT] - it[CACHED] + it[OUTPUT]) for it in came]
        found.append(Result(name, load, share, ttft_ms, [int(it[REQUESTS]) for it in came], work))
        print(row(found[-1]), flush=True)
    return found


HEADER = (
    "| replicas | load | cached | TTFT p50 | requests | tokens computed | busier/idler |\n"
    "| --- | --- | --: | --: | --: | --: | --: |"
)


def row(result: Result) -> str:
    requests, work = (" + ".join(f"{count:,}" for count in of) for of in (result.requests, result.work))
    several = f"{result.imbalance:.2f}" if len(result.requests) > 1 else ""
    return (
        f"| {result.fleet} | {result.load} | {result.cached_share:.1%} | {result.ttft_p50_ms:.0f} ms "
        f"| {requests} | {work} | {several} |"
    )


def faults(results: Sequence[Result]) -> list[str]:
    """What affinity has promised and not kept."""
    share = {(it.fleet, it.load): it.cached_share for it in results}
    alone, two = share["one replica", "8 prefixes"], share["two, affinity", "8 prefixes"]
    found = []
    if two < LEAST_SHARE * alone:
        found.append(f"the cached share of two replicas is {two / alone:.2f} of one replica's")
    for it in results:
        if (it.fleet, it.load) == ("two, affinity", "mixed") and it.imbalance > MOST_IMBALANCE:
            found.append(f"one replica had {it.imbalance:.2f} times the other's load")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.affinity", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(argv)
    cache = Path(os.environ.get("TWOPHASE_CACHE", "~/.cache/twophase")).expanduser()
    engine_args = json.dumps({"kv_cache_memory_bytes": KV_BYTES, "max_num_seqs": 16})
    results = []
    try:
        install()
        print(HEADER, flush=True)
        with tempfile.TemporaryDirectory(prefix="twophase-affinity-") as folder:
            model = make(Path(folder) / "one-layer", cache, context_window=4096)
            for name, replica in FLEETS.items():
                with running(model, replica, engine_args=engine_args) as fleet:
                    results += measure(name, fleet)
    except BenchError as exc:
        print(f"affinity: {exc}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1))
    for fault in faults(results):
        print(f"affinity: {fault}", file=sys.stderr)
    return 1 if faults(results) else 0


if __name__ == "__main__":
    sys.exit(main())
