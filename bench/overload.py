"""`python -m bench.overload`: more callers than the engine can serve, and how many are served in time.

A good answer has its first token within two seconds and is complete within ten. Goodput is how many of
them there are in a second. A server without a limit lets everybody wait and serves nobody in time; one with
a limit found by trying holds its goodput, on this machine and this model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench.arrivals import Call, Crowd
from bench.child import ROOT, BenchError
from bench.compare import EMBEDDED, model_folder
from bench.contestants import SERVED_NAME, Served, Twophase, VllmServe
from bench.machine import describe, load_average
from bench.report import table
from bench.stats import quantile
from bench.written import write_section
from service.engine.embedded import cpu_dtype

FIRST_WITHIN_S, WHOLE_WITHIN_S = 2.0, 10.0
TOKENS = 32
PATIENCE_S = 60.0
RUNNING = {
    "dtype": cpu_dtype(),  # for all: what the service takes for the embedded model
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "kv_cache_memory_bytes": 2**30,
    "max_num_seqs": 16,
}
TITLE = "Overload: answers in time when more is asked than can be served"


class Untuned(Twophase):
    """With its defaults: nobody has chosen a length for its queue."""

    name, label = "twophase", "Twophase, defaults"
    args = RUNNING
    settings: Mapping[str, str] = {}


class AsItComes(VllmServe):
    """Its queue has no end."""

    name, label = "vllm", "vllm serve, defaults"
    args = RUNNING


Kind = type[Untuned] | type[AsItComes]


def tuned(queued: int) -> Kind:
    """With a number of requests that it lets in, running ones among them, which somebody has chosen."""
    args = {**RUNNING, "max_num_queued_reqs": queued}
    return type(
        "Tuned",
        (AsItComes,),
        {"name": f"tuned-{queued}", "label": f"vllm serve, at most {queued}", "args": args},
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contestant did at one rate."""

    label: str
    rate: float
    seconds: float
    calls: Sequence[Call]

    @property
    def goodput(self) -> float:
        """Good answers a second."""
        return sum(map(good, self.calls)) / self.seconds

    @property
    def refused(self) -> list[Call]:
        """Those who were told at once that there is no room."""
        return [call for call in self.calls if call.status in (429, 503)]

    @property
    def answered(self) -> list[float]:
        """Times to first token, seconds, of all who got one."""
        return [call.first_s for call in self.calls if call.first_s is not None]


def good(call: Call) -> bool:
    """Whether an answer came in time."""
    if not call.whole or call.first_s is None:
        return False
    return call.first_s <= FIRST_WITHIN_S and call.ended_s <= WHOLE_WITHIN_S


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--rates", default="2,4,8", help="requests a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=25, help="of arrivals at each rate (%(default)g)")
    parser.add_argument("--queues", default="6,16", help="max_num_queued_reqs of vllm serve (%(default)s)")
    parser.add_argument("--only", default="", help="labels that contain this text")
    parser.add_argument("--write", action="store_true", help="write the results into bench/RESULTS.md")
    options = parser.parse_args(argv)
    rates = [float(rate) for rate in options.rates.split(",")]
    try:
        kinds = [Untuned, AsItComes, *(tuned(int(length)) for length in options.queues.split(","))]
        turns = measured(rates, options.seconds, [kind for kind in kinds if options.only in kind.label])
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    text = report(turns, rates)
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else print(text)
    if options.write:
        write_section(TITLE, text)
    return 0


def measured(rates: Sequence[float], seconds: float, kinds: Sequence[Kind]) -> list[Turn]:
    """One contestant after the other, each at every rate; only one is loaded at a time.

    Raises:
        BenchError: one could not be started.
    """
    turns = []
    with tempfile.TemporaryDirectory(prefix="twophase-overload-") as name:
        model = model_folder(EMBEDDED, Path(name))
        for kind in kinds:
            _say(f"starting {kind.label}")
            contestant = kind(model, Path(name))
            try:
                contestant.wait_ready()
                turn(contestant, min(rates), min(10.0, seconds), seed=1)  # a service learns its own pace
                for number, rate in enumerate(rates, start=2):
                    turns.append(turn(contestant, rate, seconds, seed=number))
                    _say(_line(turns[-1]))
            finally:
                contestant.end()
    return turns


def turn(contestant: Served, rate: float, seconds: float, seed: int) -> Turn:
    """Callers come at `rate`; returns when the last of them is done."""
    crowd = Crowd(rate, seconds, TOKENS, PATIENCE_S, seed, contestant.port, SERVED_NAME)
    done = subprocess.run(
        [sys.executable, "-m", "bench.arrivals"],
        input=json.dumps(asdict(crowd)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + PATIENCE_S + 60,
    )
    if done.returncode:
        raise BenchError(f"{contestant.label}: {done.stderr.strip()}")
    return Turn(contestant.label, rate, seconds, [Call(**call) for call in json.loads(done.stdout)])


def report(turns: Sequence[Turn], rates: Sequence[float]) -> str:
    """Markdown: goodput against what was offered, and what the others were told."""
    late_ms = max(call.late_s for turn in turns for call in turn.calls) * 1000
    parts = [
        "Good answers a second: first token within 2 s, complete within 10 s.\n",
        _by_rate(turns, rates, lambda turn: f"{turn.goodput:.2f}"),
        "TTFT p50 of all who got a token; how many were refused, within which time (p99), and how many of "
        "them were told when to come back.\n",
        _by_rate(turns, rates, _rest),
        f"Calls were sent at most {late_ms:.0f} ms late; load average at the end {load_average():.1f}.\n",
        table(["machine", ""], describe()),
    ]
    return "\n".join(parts)


def _by_rate(turns: Sequence[Turn], rates: Sequence[float], cell: Callable[[Turn], str]) -> str:
    at = {(turn.label, turn.rate): cell(turn) for turn in turns}
    labels = dict.fromkeys(turn.label for turn in turns)
    rows = [[label, *(at[label, rate] for rate in rates)] for label in labels]
    return table(["", *(f"{rate:g} requests/s" for rate in rates)], rows)


def _rest(turn: Turn) -> str:
    first = f"{quantile(turn.answered, 0.5):.2f} s" if turn.answered else "none"
    if not turn.refused:
        return f"{first}; none refused"
    told_ms = quantile([call.ended_s for call in turn.refused], 0.99) * 1000
    again = sum(call.retry_after for call in turn.refused)
    return f"{first}; {len(turn.refused)} of {len(turn.calls)} in {told_ms:.0f} ms, {again} told when"


def _line(turn: Turn) -> str:
    return f"{turn.label}, {turn.rate:g}/s: {turn.goodput:.2f} good answers/s; TTFT p50 {_rest(turn)}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
