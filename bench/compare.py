"""One comparison from start to end: model, contestants, race, report; and nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markdown import Markdown

from bench import random_model, report
from bench.child import BenchError
from bench.contestants import CONTESTANTS, Contestant
from bench.machine import describe
from bench.picture import draw
from bench.progress import Shown
from bench.race import Race, Rules
from bench.sample import Results
from bench.shapes import Shape, further_turns, prompts, streams
from bench.targets import FIRST, LATER, TELEMETRY, WHOLE, Target
from bench.written import write_section
from service.engine.embedded import prepare

TOY, EMBEDDED = "one-layer", "smollm2"
LABELS = {name: kind.label for name, kind in CONTESTANTS.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare, and how long."""

    model: str
    contestants: Sequence[str]
    streams: Sequence[int]
    words: Sequence[int]
    known: Sequence[int]
    tokens: int
    requests: int | None  # cold prompts in a turn
    rounds: int
    minutes: float
    calm: float
    patience_s: float
    json: Path | None
    write: bool

    @property
    def shapes(self) -> list[Shape]:
        """The loads, smallest first."""
        repeat = self.model == TOY
        loads = [streams(count, self.tokens, repeat=repeat) for count in sorted(self.streams)]
        loads += [prompts(words, self.requests) for words in sorted(self.words)]
        return loads + [further_turns(words) for words in sorted(self.known)]

    @property
    def turns(self) -> int:
        """Of all contestants together."""
        return self.rounds * len(self.shapes) * len(self.contestants)

    @property
    def targets(self) -> Sequence[Target]:
        """What this model's figures are held against."""
        return [*FIRST, *TELEMETRY, *LATER] if self.model == TOY else WHOLE


def compare(options: Options) -> None:
    """Run it and report.

    Raises:
        BenchError: something could not be started, or an answer was not what was asked for.
    """
    deadline = time.monotonic() + options.minutes * 60
    with _ends_on_sigterm(), tempfile.TemporaryDirectory(prefix="twophase-bench-") as name:
        results = _race(options, Path(name), deadline)
    if not results.samples:
        raise BenchError("the time was up before anything was measured; give more --minutes")
    text = _text(options, results)
    _print(text)
    if options.json:
        options.json.write_text(json.dumps(_as_data(options, results), indent=1))
    if options.write:
        picture = draw(results, LABELS, options.model)
        write_section(options.model, f"![CPU time of the front ends]({picture.name})\n\n{text}")


def _race(options: Options, folder: Path, deadline: float) -> Results:
    with Shown(LABELS, options.turns) as shown:
        shown.begins("preparing the model")
        model = model_folder(options.model, folder)
        with started(options.contestants, model, folder, shown) as contestants:
            race = Race(contestants, options.shapes, shown)
            race.warm_up()
            repeats = options.rounds * len(options.shapes) // 2
            return race.run(Rules(options.rounds, deadline, options.calm, repeats, options.patience_s))


@contextmanager
def started(names: Sequence[str], model: str, folder: Path, shown: Shown) -> Iterator[list[Contestant]]:
    """The contestants, ready, one started after the other; when the block ends, nothing of them is left."""
    contestants: list[Contestant] = []
    try:
        for name in names:
            shown.begins(f"starting {LABELS[name]}")
            contestants.append(CONTESTANTS[name](model, folder))
            contestants[-1].wait_ready()
        yield contestants
    finally:
        shown.begins("ending")
        _end(contestants)


def _end(contestants: Sequence[Contestant]) -> None:
    """A second Ctrl-C would leave engines behind, so it has to wait for this."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for contestant in contestants:
            contestant.child.ask_to_end()
        for contestant in contestants:
            contestant.end()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """A request to terminate takes the same way out as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def model_folder(name: str, folder: Path) -> str:
    """A folder or Hugging Face id that every contestant can load."""
    cache = Path(os.environ.get("TWOPHASE_CACHE", "~/.cache/twophase")).expanduser()
    if name == EMBEDDED:
        return str(prepare(cache).path)
    if name != TOY:
        return name
    made = folder / TOY
    # In a process of its own: torch would keep its threads and its memory here.
    maker = multiprocessing.get_context("spawn").Process(target=random_model.make, args=(made, cache))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise BenchError("the one-layer model could not be made; the reason stands above")
    return str(made)


def _text(options: Options, results: Results) -> str:
    measured = {sample.shape for sample in results.samples}
    shapes = [shape for shape in options.shapes if shape.name in measured]
    rounds = (
        f"Medians of {options.rounds} rounds, lowest and highest in brackets; ratios are taken turn by turn."
    )
    parts = [f"{rounds} {report.disturbance(results)}\n", report.tables(results, shapes, LABELS)]
    if judged := report.verdicts(results, options.targets, LABELS):
        parts.append(judged)
    parts.append(report.table(["machine", ""], describe()))
    return "\n".join(parts)


def _print(text: str) -> None:
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text)


def _as_data(options: Options, results: Results) -> dict[str, object]:
    return {
        "model": options.model,
        "machine": dict(describe()),
        "complete": results.complete,
        "samples": [asdict(sample) for sample in results.samples],
        "disturbed": [asdict(sample) for sample in results.disturbed],
    }
