"""One run from beginning to end: a server, steps of load on it, samples in a folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from loadtests import machine
from loadtests.launch import Locust
from loadtests.plan import Plan, Step
from loadtests.sample import read_samples
from loadtests.scenarios import Wishes, rate_step, steps
from loadtests.scrape import Scraper
from loadtests.slo import Slo
from loadtests.summary import Row, rows
from loadtests.sweep import Sweep
from loadtests.target import Target, drain_at
from loadtests.witness import read_witnesses

SWEEPS = ("sweep", "full")
BELOW_CAPACITY = 0.5
LOCUST_S = 5.0  # to start and to end
CONTROL = {"temperature": 0.7}
WHOLE_LENGTH = {"ignore_eos": True}  # vLLM's: every answer has the length that was asked for


class TooLong(Exception):
    """The steps do not fit the time; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is made from."""

    scenario: str
    wishes: Wishes
    folder: Path
    slo: Slo
    locust: Locust
    model: str | None = None
    seed: int = 1
    minutes: float = 10.0
    max_requests: int = 20_000
    patience_s: float = 60.0


class Run:
    """Holds what the parts of a run share."""

    def __init__(self, options: Options, target: Target, say: Callable[[str], None]) -> None:
        self._options = options
        self._target = target
        self._say = say
        self._steps: list[Step] = []
        self._until = time.monotonic() + options.minutes * 60
        self._load_before = machine.load_average()
        self._plan = Plan("", "", "", (), "")

    def run(self) -> None:
        """Ask the server what it can do, then run the scenario's steps.

        Raises:
            TargetError: the server cannot be used.
            LaunchError: Locust failed.
            TooLong: the steps do not fit the time.
        """
        options = self._options
        model = options.model or self._target.model()
        extras = dict(CONTROL)
        if self._target.takes(model, **CONTROL, **WHOLE_LENGTH):
            extras |= WHOLE_LENGTH
        self._plan = Plan(
            self._target.url,
            model,
            str(options.folder),
            (),
            secrets.token_hex(4),
            options.seed,
            options.patience_s,
            options.max_requests,
            extras,
        )
        try:
            with Scraper(self._target.url, self._target.key, options.folder / "metrics.jsonl"):
                self._known(steps(options.scenario, options.wishes))
                if options.scenario in SWEEPS and options.locust.web_port is None:
                    self._sweep()
        finally:
            self._note()

    def _known(self, known: Sequence[Step]) -> None:
        if not known:
            return
        seconds = max(step.end_s for step in known) + LOCUST_S
        if seconds > self._options.minutes * 60:
            raise TooLong(
                f"these steps take {seconds / 60:.1f} minutes and {self._options.minutes:g} are allowed: "
                "ask for fewer or shorter ones (--users, --rates, --seconds), or allow more (--minutes)"
            )
        if self._options.scenario == "drain":
            drain_at(self._target, self._begun, known[0].end_s, self._say)
        self._go(known)

    def _go(self, more: Sequence[Step]) -> None:
        self._steps += more
        self._note()
        if (port := self._options.locust.web_port) is not None:
            self._say(f"Locust's page: http://127.0.0.1:{port} (Ctrl-C ends it and writes the report)")
        self._options.locust.run(replace(self._plan, steps=more), self._target.key, self._say)

    def _sweep(self) -> None:
        sweep = Sweep(self._holds)
        sweep.run(self._first_rate())

    def _first_rate(self) -> float:
        """Half of what the closed loop got done, where there was one."""
        done = [row.goodput_per_s for row in self._rows() if row.step.part == "concurrency"]
        return max(done, default=0.0) * BELOW_CAPACITY or self._options.wishes.rate

    def _holds(self, rate: float) -> bool:
        """Run a step at this rate. When the time is up, none is run and the rate counts as too much."""
        wishes = self._options.wishes
        if time.monotonic() + wishes.step_s + wishes.pause_s + LOCUST_S > self._until:
            self._say("the time is up: no further step")
            return False
        step = replace(rate_step(wishes, rate), number=len(self._steps), start_s=1.0)
        self._go([step])
        row = next((row for row in self._rows() if row.step.number == step.number), None)
        share = row.value("good_share") if row else None
        held = share is not None and share >= self._options.slo.hold_share
        self._say(f"{rate:.3g}/s {'held' if held else 'did not hold'}: {share or 0:.0%} good")
        return held

    def _begun(self) -> float | None:
        """When the plan's clock begins, on this machine's monotonic clock; None before that is known."""
        notes = read_witnesses(self._options.folder)
        return next((note["begins_monotonic_s"] for note in notes if "begins_monotonic_s" in note), None)

    def _rows(self) -> list[Row]:
        return rows(self._steps, read_samples(self._options.folder), self._options.slo.good)

    def _note(self) -> None:
        """Everything but the samples that a report needs."""
        options, plan = self._options, self._plan
        about: dict[str, Any] = {
            "scenario": options.scenario,
            "workload": options.wishes.workload,
            "seed": options.seed,
            "url": plan.url,
            "model": plan.model,
            "request fields": plan.extras,
            "server": self._target.get("/version"),
            "load processes": options.locust.processes,
            "server shares this machine": self._target.pid is not None,
            **machine.describe(),
            "load average before and after": [round(self._load_before, 2), round(machine.load_average(), 2)],
        }
        noted = {"about": about, "steps": self._steps}
        (options.folder / "run.json").write_bytes(orjson.dumps(noted, option=orjson.OPT_INDENT_2))
