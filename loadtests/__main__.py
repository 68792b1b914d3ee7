"""`python -m loadtests`: the command line."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtests.launch import LaunchError, Locust
from loadtests.plan import KEY_VARIABLE
from loadtests.report import write_report
from loadtests.result import Result
from loadtests.run import Options, Run, TooLong
from loadtests.scenarios import SCENARIOS, Wishes
from loadtests.slo import DEFAULT, BadSlo, Slo, read_slo
from loadtests.target import Target, TargetError, started
from loadtests.workloads import PRESETS, parse

DESCRIPTION = """
Puts load on a chat server that speaks OpenAI's protocol, and writes a report: time to the first token, time
per token, how much load is answered well, and what limits it. Without a URL it starts Twophase itself.
"""

EPILOG = f"""
scenarios:
{os.linesep.join(f"  {name:<12} {what}" for name, what in SCENARIOS.items())}

workloads: {", ".join(PRESETS)}; fields are changed with commas, as in
  --workload chat,words=100,tokens=64      lengths of prompt and answer
  --workload lognormal,spread=0.5          how far lengths vary
  --workload shared-prefix,groups=2        how many system prompts
  --workload chat,warm=1                   the same prompts again, so that the prefix cache has them

examples:
  python -m loadtests                                          everything, on a server of its own
  python -m loadtests http://gpu:8000 --scenario sweep         the knee of a server that runs
  python -m loadtests http://gpu:8000 --scenario closed --users 1,8,64 --workload long-answer
  python -m loadtests --web                                    steered from Locust's page

exit code: 0 when the promises of the SLO file (--slo) were kept, 1 when not, 2 when nothing could be measured
"""

MAX_REQUESTS_HELP = (
    "no more than so many, for each step of a sweep apart; a run that is cut by it fails (%(default)d)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = _parser().parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)  # either way what was started is stopped
    try:
        slo = read_slo(given.slo)
        folder = given.report or _measure(given, slo)
        return _conclude(write_report(folder, slo), folder)
    except (BadSlo, TargetError, LaunchError, TooLong) as exc:
        say(f"loadtests: {exc}")
        return 2
    except KeyboardInterrupt:
        return 130


def say(line: str) -> None:
    """To the person who watches."""
    print(line, file=sys.stderr, flush=True)


def _measure(given: argparse.Namespace, slo: Slo) -> Path:
    """Run the scenario; the folder with what was measured. Ctrl-C ends it early, and keeps what there is."""
    folder: Path = given.out or Path("loadtest-results") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("samples-*.jsonl")):
        raise TargetError(f"{folder} holds another run already: name a new folder with --out")
    with _target(given, folder) as target:
        run = Run(_options(given, folder, slo), target, say)
        with contextlib.suppress(KeyboardInterrupt):
            run.run()
    return folder


@contextlib.contextmanager
def _target(given: argparse.Namespace, folder: Path) -> Iterator[Target]:
    key = given.key or os.environ.get(KEY_VARIABLE, "")
    if given.web and given.scenario == "sweep":
        raise TargetError("a sweep chooses its own next step, so it has no page: leave --web out")
    if given.url:
        if given.scenario == "drain":
            raise TargetError("drain sends a signal to the server, so it is for one that is started here")
        yield Target(given.url.rstrip("/").removesuffix("/v1"), key)
        return
    with started(say, folder / "server.log", key) as target:
        yield target


def _options(given: argparse.Namespace, folder: Path, slo: Slo) -> Options:
    wishes = Wishes(
        workload=given.workload,
        users=given.users,
        rates=given.rates,
        rate=given.rate,
        step_s=given.seconds,
        pause_s=given.pause,
        leave=given.leave,
    )
    return Options(
        scenario=given.scenario,
        wishes=wishes,
        folder=folder,
        slo=slo,
        locust=Locust(given.processes, given.web_port if given.web else None),
        model=given.model,
        seed=given.seed,
        minutes=given.minutes,
        max_requests=given.max_requests,
        patience_s=given.patience,
    )


def _conclude(result: Result, folder: Path) -> int:
    for sentence in result.sentences:
        say(sentence)
    for fault in result.faults:
        say(f"not kept: {fault}")
    say(f"report: {folder / 'report.html'}")
    return 1 if result.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = Wishes()
    parser.add_argument("url", nargs="?", metavar="URL", help="the server, like http://localhost:8000")
    what = parser.add_argument_group("what to do").add_argument
    what("--scenario", choices=SCENARIOS, default="full", metavar="NAME", help="see below (%(default)s)")
    what("--workload", type=_workload, default="chat", metavar="NAME", help="see below (%(default)s)")
    what(
        "--users", type=_counts, default=defaults.users, help=f"of the closed loop ({_shown(defaults.users)})"
    )
    what("--rates", type=_rates, default=defaults.rates, help=f"requests/s, open ({_shown(defaults.rates)})")
    what("--rate", type=_positive, default=defaults.rate, help="requests/s where there is one (%(default)g)")
    what("--seconds", type=_positive, default=defaults.step_s, help="length of a step (%(default)g)")
    what("--pause", type=_positive, default=defaults.pause_s, help="seconds between steps (%(default)g)")
    what("--leave", type=_share, default=defaults.leave, help="share of clients that leave (%(default)g)")
    what("--slo", type=Path, default=DEFAULT, metavar="FILE", help="what counts as good (loadtests/slo.toml)")
    what(
        "--seed", type=int, default=1, help="the same seed gives the same lengths and arrivals (%(default)d)"
    )
    how = parser.add_argument_group("how").add_argument
    how("--key", help=f"API key; better in {KEY_VARIABLE}, where no list of processes shows it")
    how("--model", help="name of the model in requests (the first one the server lists)")
    how("--minutes", type=_positive, default=10, help="no step begins after this time (%(default)g)")
    how("--max-requests", type=_count, default=20_000, help=MAX_REQUESTS_HELP)
    how("--patience", type=_positive, default=60, help="seconds to wait for one answer (%(default)g)")
    how("--processes", type=_count, default=1, help="that make load (%(default)d)")
    how("--web", action="store_true", help="steer the run from Locust's page")
    how("--web-port", type=_count, default=8089, help="where that page is (%(default)d)")
    how("--out", type=Path, metavar="FOLDER", help="for the results (loadtest-results/DATE)")
    how("--report", type=Path, metavar="FOLDER", help="only write the report of an earlier run anew")
    return parser


def _workload(text: str) -> str:
    try:
        parse(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    return text


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _share(text: str) -> float:
    if (number := _positive(text)) > 1:
        raise argparse.ArgumentTypeError(f"{text} is more than 1")
    return number


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _rates(text: str) -> list[float]:
    return [_positive(part) for part in text.split(",")]


def _shown(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
