"""`python -m bench.simulate`: how many replicas a load needs, from a model's shape and a machine's rates.

Nothing is served and nothing is measured. Each replica goes through its engine's steps one by one; a fleet
is seen through a sample of its replicas. `--check` holds the simulator against what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench.planning import measured
from bench.planning.fleet import Promise, Routing, look, needed
from bench.planning.known import MACHINES, MODELS
from bench.planning.shape import Engine, Model
from bench.planning.traffic import Mix
from bench.report import table

ROUTINGS: Sequence[Routing] = ("random", "affinity")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(argv)
    if options.check:
        return _show(check())
    try:
        model = _model(options.model)
    except (OSError, KeyError, ValueError) as exc:
        print(f"simulate: {options.model} cannot be used: {exc}", file=sys.stderr)
        return 1
    machine = MACHINES[options.machine].slower(options.slower)
    engine = Engine(model, machine, max_running=options.max_running)
    if engine.kv_tokens < options.prefix + options.prompt + options.output:
        print(f"simulate: {model.name} and one request do not fit {options.machine}", file=sys.stderr)
        return 1
    promise = Promise(options.ttft_s, options.tpot_s, options.share)
    mix = Mix("load", options.prompt, options.output, options.prefix, 1, options.skew, options.spread)
    rates = [float(rate) for rate in options.rates.split(",")]
    return _show(report(engine, mix, promise, rates, options.groups))


def check() -> str:
    """Markdown: measured against simulated, figure by figure."""
    rows = [
        [of, figure.name, f"{figure.measured:g}", f"{figure.simulated:.4g}", f"{figure.off:+.0%}"]
        for of, figures in (("load test", measured.load_test()), ("overload", measured.overload()))
        for figure in figures
    ]
    return table(["run", "figure", "measured", "simulated", "off"], rows)


def report(engine: Engine, mix: Mix, promise: Promise, rates: Sequence[float], groups: float) -> str:
    """Markdown: for each rate and routing the replicas that are needed, and what callers see of them."""
    head = [
        "requests/s",
        "groups",
        "routing",
        "replicas",
        "each, requests/s",
        "cached",
        "TTFT p50",
        "p99",
        "good",
    ]
    rows = [row for rate in rates for row in _rows(engine, mix, promise, rate, groups)]
    return f"{_about(engine, mix, promise)}\n\n{table(head, rows)}"


def _rows(engine: Engine, mix: Mix, promise: Promise, rate: float, groups: float) -> Iterator[list[str]]:
    of_rate = replace(mix, groups=max(1, round(groups * rate)))
    for routing in ROUTINGS if mix.prefix_tokens else ROUTINGS[:1]:
        print(f"simulate: {rate:g} requests/s, {routing}", file=sys.stderr, flush=True)
        many = needed(engine, of_rate, rate, routing, promise)
        if many is None:
            yield [f"{rate:g}", f"{of_rate.groups:,}", routing, "none keeps the promise", *[""] * 5]
            continue
        seen = look(engine, of_rate, rate, many, routing, promise)
        yield [
            *(f"{rate:g}", f"{of_rate.groups:,}", routing, f"{many:,}", f"{rate / many:.1f}"),
            *(
                f"{seen.cached:.0%}",
                f"{seen.ttft_s(0.5):.2f} s",
                f"{seen.ttft_s(0.99):.2f} s",
                f"{seen.good:.1%}",
            ),
        ]


def _about(engine: Engine, mix: Mix, promise: Promise) -> str:
    alone = 1 / engine.step_seconds(1, mix.prefix_tokens + mix.prompt_tokens)
    return (
        f"{engine.model.name} on {engine.machine.name}: cache for {engine.kv_tokens:,} tokens, a lone answer "
        f"at {alone:.0f} tokens/s. Requests of {mix.prefix_tokens:,} shared and {mix.prompt_tokens:,} own "
        f"tokens, {mix.output_tokens} out. Good: first token within {promise.ttft_s:g} s, then "
        f"{promise.tpot_s * 1000:g} ms a token; {promise.share:.0%} must be."
    )


def _model(name: str) -> Model:
    return MODELS[name] if name in MODELS else Model.of(name, json.loads(Path(name).read_text()))


def _show(text: str) -> int:
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__)
    add = parser.add_argument
    add("--check", action="store_true", help="hold the simulator against measurements, and stop")
    add("--model", default="llama-3.1-8b", help=f"a config.json, or one of {', '.join(MODELS)} (%(default)s)")
    add("--machine", default="h100", choices=MACHINES, help="what one replica runs on (%(default)s)")
    add(
        "--slower",
        type=float,
        default=1.0,
        help="by which factor yours is slower than that (%(default)s)",
    )
    add("--max-running", type=int, default=256, help="requests in the engine at once (%(default)s)")
    add("--rates", default="10,100,1000", help="requests a second, of the whole fleet (%(default)s)")
    add("--prompt", type=int, default=400, help="tokens of a prompt beside its prefix (%(default)s)")
    add("--output", type=int, default=250, help="tokens of an answer (%(default)s)")
    add("--prefix", type=int, default=3000, help="tokens a prompt shares with its group (%(default)s)")
    add("--groups", type=float, default=20, help="groups for each request a second (%(default)s)")
    add("--skew", type=float, default=1.0, help="how unevenly groups ask, Zipf's exponent (%(default)s)")
    add("--spread", type=float, default=0.6, help="of lengths, sigma of a lognormal (%(default)s)")
    add("--ttft-s", type=float, default=2.0, help="good: first token within (%(default)s)")
    add("--tpot-s", type=float, default=0.05, help="good: each further token within (%(default)s)")
    add("--share", type=float, default=0.95, help="how many have to be good (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
