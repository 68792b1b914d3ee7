"""`python -m bench`: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.child import BenchError
from bench.compare import Options, compare
from bench.contestants import CONTESTANTS, USUAL

DESCRIPTION = """
Runs the bare engine (AsyncLLM without HTTP), Twophase with and without telemetry, and `vllm serve` on the
same model with the same engine arguments, asks each for the same answers in alternating order, and prints
medians and ratios. All are loaded at once (about 3 GB each); only one works at a time.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = _parser()
    options = _options(parser.parse_args(argv))
    if not options.shapes:
        parser.error("neither streams nor words are asked for")
    try:
        compare(options)
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=DESCRIPTION)
    add = parser.add_argument
    add("--rounds", type=_positive, help="how often everything is measured (5)")
    add("--streams", type=_counts, help="streams at a time, like 8,64,256; 0 for none (by model)")
    add("--words", type=_counts, help="words of the cold prompts, like 100,1000,4000; 0 for none (by model)")
    add("--known", type=_counts, help="words that a conversation began with; 0 for none (by model)")
    add("--tokens", type=_positive, help="tokens in each stream (128, or 64 for a model that is no toy)")
    add("--requests", type=_positive, help="cold prompts in a turn (12 to 120, by their length)")
    add("--only", type=_names, default=USUAL, help=f"some of {','.join(CONTESTANTS)}")
    add("--model", default="one-layer", help="one-layer (made here), smollm2, a folder or a Hugging Face id")
    add("--quick", action="store_true", help="by default, two rounds of 64 streams and of 1,000 words")
    add("--minutes", type=float, default=25, help="no turn begins after this time (%(default)g)")
    add("--calm", type=float, default=10, metavar="PERCENT", help=CALM_HELP)
    add("--patience", type=float, default=60, metavar="SECONDS", help=PATIENCE_HELP)
    add("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    add("--write", action="store_true", help="write the results into bench/RESULTS.md, with a picture")
    return parser


CALM_HELP = "repeat a turn while others take more of the machine; as often as half of all turns (%(default)g)"
PATIENCE_HELP = "how long to wait in all, before turns, for others to leave the machine alone (%(default)g)"


def _options(given: argparse.Namespace) -> Options:
    toy = given.model == "one-layer"
    streams = given.streams or ([8, 64, 256] if toy else [1, 8, 32])
    words = given.words or ([100, 1000, 4000] if toy else [0])
    known = given.known or ([4000] if toy and given.words is None else [0])
    if given.quick:
        streams, words = given.streams or [64], given.words or [1000]
        known = given.known or [0]
    return Options(
        model=given.model,
        contestants=given.only,
        streams=[count for count in streams if count],
        words=[count for count in words if count],
        known=[count for count in known if count],
        tokens=given.tokens or (128 if toy else 64),
        requests=given.requests,
        rounds=given.rounds or (2 if given.quick else 5),
        minutes=given.minutes,
        calm=given.calm / 100,
        patience_s=given.patience,
        json=given.json,
        write=given.write,
    )


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if any(count < 0 for count in counts):
        raise argparse.ArgumentTypeError(f"{text} has a negative number")
    return counts


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CONTESTANTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(CONTESTANTS)}")
    return [name for name in CONTESTANTS if name in names]


if __name__ == "__main__":
    sys.exit(main())
