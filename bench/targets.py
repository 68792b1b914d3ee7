"""What the measurements are held against. Everything is a comparison inside one run, never an absolute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.sample import Measure, Results
from bench.stats import Spread, excesses, ratios

US = "twophase"
UNTOLD = "untold"
BEST = "best"
ROUNDING = 1e-9
REQUEST: Measure = "cpu_ms_per_request"


@dataclass(frozen=True, slots=True)
class Target:
    """Our value against a peer's in the same turns: as a ratio, or as the difference where `more` is set."""

    title: str
    shape: str
    measure: Measure
    peer: str
    limit: float
    at_least: bool = False
    difference: bool = False
    peer_shape: str | None = None  # where the comparison is with another load

    def measured(self, results: Results) -> Spread | None:
        """None when the run had no part of it."""
        ours = results.values(US, self.shape, self.measure)
        shape = self.peer_shape or self.shape
        if self.peer == BEST:
            theirs = results.best(shape, self.measure)
        else:
            theirs = results.values(self.peer, shape, self.measure)
        turns = min(len(ours), len(theirs))
        if not turns:
            return None
        compare = excesses if self.difference else ratios
        return compare(ours[:turns], theirs[:turns])

    def met(self, measured: Spread) -> bool:
        """By the median."""
        short = self.limit - measured.median if self.at_least else measured.median - self.limit
        return short <= ROUNDING


def _per_streams(count: int) -> list[Target]:
    shape = f"{count} streams"
    cpu = "front-end CPU per token"
    return [
        Target(f"{cpu}, {shape}", shape, "cpu_us_per_token", "vllm", 0.6),
        Target(f"{cpu}, {shape}, above bare", shape, "cpu_us_per_token", "bare", 12, difference=True),
    ]


def _at_full_load(count: int) -> list[Target]:
    shape = f"{count} streams"
    return [
        Target(f"tokens/s, {shape}", shape, "tokens_per_s", BEST, 0.97, at_least=True),
        Target(f"TTFT p50, {shape}", shape, "ttft_p50_ms", "vllm", 0.6),
        Target(f"TTFT p99, {shape}", shape, "ttft_p99_ms", "vllm", 0.85),
        Target(f"TTFT p50, {shape}", shape, "ttft_p50_ms", "rust", 1.2),
    ]


def _per_prompt(words: int) -> Target:
    shape = f"{words} words"
    return Target(f"front-end CPU per request, {shape}", shape, REQUEST, "vllm", 0.7)


def _near_bare(count: int) -> list[Target]:
    shape = f"{count} streams"
    return [
        Target(f"tokens/s, {shape}", shape, "tokens_per_s", "bare", 0.98, at_least=True),
        Target(f"TTFT p50, {shape}", shape, "ttft_p50_ms", "bare", 1.02),
    ]


FIRST: Sequence[Target] = [
    Target("tokens/s, 64 streams", "64 streams", "tokens_per_s", "bare", 0.9, at_least=True),
    Target(
        "front-end CPU per token, 64 streams, above bare",
        "64 streams",
        "cpu_us_per_token",
        "bare",
        25,
        difference=True,
    ),
]

TELEMETRY: Sequence[Target] = [
    Target("telemetry, 64 streams", "64 streams", "cpu_us_per_token", UNTOLD, 3, difference=True),
    *(
        Target(
            f"telemetry, per request, {words} words", f"{words} words", REQUEST, UNTOLD, 0.3, difference=True
        )
        for words in (100, 1000, 4000)
    ),
]

LATER: Sequence[Target] = [
    *(target for count in (64, 256) for target in _at_full_load(count)),
    *(target for count in (8, 64, 256) for target in _per_streams(count)),
    *(_per_prompt(words) for words in (100, 1000, 4000)),
    Target(
        "front-end CPU per request, a turn after 4000 words",
        "a turn after 4000 words",
        REQUEST,
        "rust",
        1.0,
        peer_shape="4000 words",
    ),
    Target(
        "front-end CPU per token, 256 streams against 8",
        "256 streams",
        "cpu_us_per_token",
        US,
        1.0,
        peer_shape="8 streams",
    ),
    Target("memory of the front end, 256 streams", "256 streams", "peak_mb", "vllm", 1.0),
]

WHOLE: Sequence[Target] = [target for count in (1, 8, 32) for target in _near_bare(count)]
