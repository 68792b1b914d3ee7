"""`python -m bench.foresee`: how near predicted first tokens come, on a service that does nothing else.

Requests come one after another: prompts of all lengths, some new, some a conversation that goes on and so is
partly cached. Each is explained first, then asked, and its prediction held against the time it took.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.progress import track

from bench.child import BenchError
from bench.client import KEY
from bench.compare import TOY, model_folder
from bench.contestants import SERVED_NAME, Twophase
from bench.machine import Bystanders, describe, load_average
from bench.shapes import WORDS

CHAT = "/v1/chat/completions"
NEAR = 0.25  # of the measured time
WANTED = 0.8  # of requests as near as that
WORDS_OF = (5, 50, 200, 800, 2000)
COUNTED_S = 2
MOST_TURNS = 6  # of a conversation before a new one begins
RATIO = re.compile(r"^twophase_prediction_error_ratio_(sum|count) (\S+)$", re.MULTILINE)

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what was predicted over what it took, twice, and what it was."""

    at_admission: float | None
    by_explain: float | None
    prompt_tokens: int
    cached_tokens: int
    forecast_tokens: int
    ttft_ms: float


class Asker:
    """One caller with a conversation."""

    def __init__(self, url: str) -> None:
        self._web = httpx.Client(base_url=url, timeout=120, headers={"authorization": f"Bearer {KEY}"})
        self._chance = random.Random(0)
        self._talk: Messages = []

    def close(self) -> None:
        """End the connection."""
        self._web.close()

    def ask(self) -> Asked:
        """Explain a request, send it, and compare."""
        self._go_on()
        tokens = self._chance.randint(4, 24)
        body = {"messages": self._talk, "max_tokens": tokens, "ignore_eos": True}
        told = self._web.post(f"{CHAT}/explain", json=body).raise_for_status().json()
        sum_before, count_before = self._ratios()
        text, last = self._stream(body)
        self._talk.append({"role": "assistant", "content": text})
        total, count = self._ratios_after(count_before)
        phases, predicted_ms = last["phases"], told["predicted"]["ttft_ms"]
        return Asked(
            total - sum_before if count > count_before else None,
            None if predicted_ms is None else predicted_ms / phases["ttft_ms"],
            last["usage"]["prompt_tokens"],
            phases["cache"]["cached_tokens"],
            phases["cache"]["forecast_tokens"],
            phases["ttft_ms"],
        )

    def _go_on(self) -> None:
        if len(self._talk) >= 2 * MOST_TURNS or self._chance.random() < 1 / 3:
            self._talk = []
        words = self._chance.choices(WORDS.split(), k=self._chance.choice(WORDS_OF))
        self._talk.append({"role": "user", "content": " ".join(words)})

    def _stream(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text, last = "", dict[str, Any]()
        with self._web.stream("POST", CHAT, json=asked) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
                    text += "".join(choice["delta"].get("content") or "" for choice in last["choices"])
        if "phases" not in last:
            raise BenchError(f"a request was not answered: {last}")
        return text, last

    def _ratios_after(self, count_before: int) -> tuple[float, int]:
        """A request is counted when it is closed, which its caller may be a little ahead of."""
        patience_s = time.monotonic() + COUNTED_S
        while (found := self._ratios())[1] == count_before and time.monotonic() < patience_s:
            time.sleep(0.05)
        return found

    def _ratios(self) -> tuple[float, int]:
        found = dict(RATIO.findall(self._web.get("/metrics").text))
        return float(found["sum"]), int(float(found["count"]))


def measure(model: str, warm_up: int, requests: int) -> None:
    """Serve, ask, report.

    Raises:
        BenchError: the service did not start or did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="twophase-foresee-") as name:
        service = Twophase(model_folder(model, Path(name)), Path(name))
        try:
            service.wait_ready()
            with closing(Asker(service.url)) as asker:
                for _ in track(range(warm_up), "warm-up"):
                    asker.ask()
                others = Bystanders([service.child])
                asked = [asker.ask() for _ in track(range(requests), "measured")]
                _report(model, warm_up, asked, others.share())
        finally:
            service.child.ask_to_end()
            service.child.end()


def _report(model: str, warm_up: int, asked: Sequence[Asked], others: float) -> None:
    print(f"{SERVED_NAME}: {model}; {len(asked)} requests one by one after {warm_up} of warm-up")
    for what, value in describe():
        print(f"  {what}: {value}")
    print(f"  load average {load_average():.1f}, others' share of the machine {others:.0%}")
    waits = sorted(each.ttft_ms for each in asked)
    prompts = sorted(each.prompt_tokens for each in asked)
    print(
        f"  prompts {prompts[0]} to {prompts[-1]} tokens, first tokens {waits[0]:.1f} to {waits[-1]:.1f} ms"
    )
    right = sum(each.forecast_tokens == each.cached_tokens for each in asked)
    print(f"  cached tokens as forecast: {right} of {len(asked)}")
    for name, ratios in (
        ("at admission", [each.at_admission for each in asked]),
        ("by explain", [each.by_explain for each in asked]),
    ):
        known = sorted(ratio for ratio in ratios if ratio is not None)
        near = sum(abs(ratio - 1) <= NEAR for ratio in known) / len(ratios)
        p10, *_, p90 = statistics.quantiles(known, n=10)
        verdict = "as wanted" if near >= WANTED else f"{WANTED:.0%} wanted"
        middle = statistics.median(known)
        print(
            f"  predicted over measured, {name}: median {middle:.2f}, p10 {p10:.2f}, p90 {p90:.2f}; "
            f"within {NEAR:.0%}: {near:.0%} ({verdict})"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.foresee", description=(__doc__ or "").strip())
    add = parser.add_argument
    add("--model", default=TOY, help="one-layer (made here), smollm2, a folder or a Hugging Face id")
    add("--warm-up", type=int, default=50, help="requests before those that count (%(default)s)")
    add("--requests", type=int, default=100, help="requests that count (%(default)s)")
    given = parser.parse_args(argv)
    try:
        measure(given.model, given.warm_up, given.requests)
    except BenchError as exc:
        print(f"foresee: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
