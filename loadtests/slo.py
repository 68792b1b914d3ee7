"""What counts as a good answer, and what a run has to keep: a TOML file decides the exit code."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from loadtests.sample import Sample
from loadtests.scenarios import AFTER_SIGNAL
from loadtests.summary import Row

DEFAULT = Path(__file__).with_name("slo.toml")
AT_LEAST = ("good_share",)


class BadSlo(Exception):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Good:
    """An answer is good when it is complete and none of these is passed; times from the intended instant."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 0.0  # 0 asks for nothing
    total_ms: float = 10_000.0

    def __call__(self, sample: Sample) -> bool:
        """Refusals and failures are not good."""
        if sample.outcome != "ok" or sample.first_ms is None:
            return False
        pace = sample.tpot_ms or 0.0
        return (
            sample.first_ms <= self.ttft_ms
            and sample.end_ms <= self.total_ms
            and (not self.tpot_ms or pace <= self.tpot_ms)
        )


@dataclass(frozen=True, slots=True)
class Slo:
    """The whole file."""

    good: Good = field(default_factory=Good)
    hold_share: float = 0.9  # of good answers at which a load still counts as held
    send_lag_p99_ms: float = 20.0
    failed_share: float = 0.0
    limits: dict[str, dict[str, float]] = field(default_factory=dict)  # by part of a run

    def faults(self, rows: Sequence[Row], knee_per_s: float | None) -> list[str]:
        """What was not kept, each in a sentence."""
        return [*self._everywhere(rows), *self._by_part(rows), *self._knee(knee_per_s)]

    def _everywhere(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            if row.step.open and row.lag_p99_ms is not None and row.lag_p99_ms > self.send_lag_p99_ms:
                yield (
                    f"{row.name}: requests were sent {row.lag_p99_ms:.0f} ms late (p99, at most "
                    f"{self.send_lag_p99_ms:g}): the load generator did not keep its schedule, so this run "
                    "proves nothing. Give it more processes (--processes) or a machine of its own."
                )
        sent, failed = sum(row.sent for row in rows), sum(map(_failed, rows))
        if sent and failed / sent > self.failed_share:
            yield f"{failed} of {sent} requests failed, at most {self.failed_share:.1%} may"
        if not sent:
            yield "no request was sent"

    def _by_part(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            for name, limit in self.limits.get(row.step.part, {}).items():
                value = row.value(name)
                if value is None:
                    yield f"{row.name}: {name} could not be measured"
                elif (value < limit) if name in AT_LEAST else (value > limit):
                    side = "at least" if name in AT_LEAST else "at most"
                    yield f"{row.name}: {name} is {value:.4g}, {side} {limit:g} was promised"

    def _knee(self, knee_per_s: float | None) -> Iterator[str]:
        limit = self.limits.get("sweep", {}).get("knee_per_s")
        if limit is not None and knee_per_s is not None and knee_per_s < limit:
            yield f"the knee is at {knee_per_s:.3g} requests/s, at least {limit:g} was promised"


def _failed(row: Row) -> int:
    """When a server has gone after its drain, nobody is there, as it should be."""
    return row.failed - (row.outcomes["no_connection"] if row.step.name == AFTER_SIGNAL else 0)


def read_slo(path: Path) -> Slo:
    """Raises:
    BadSlo: with what is wrong.
    """
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise BadSlo(f"{path}: {exc}") from None
    tables = {name: content.pop(name, {}) for name in ("good", "hold", "run")}
    limits = content.pop("limits", {})
    if content:
        raise BadSlo(f"{path}: there is no [{next(iter(content))}]; there are good, hold, run and limits")
    _check(path, "good", tables["good"], [f.name for f in fields(Good)])
    _check(path, "hold", tables["hold"], ["good_share"])
    _check(path, "run", tables["run"], ["send_lag_p99_ms", "failed_share"])
    for part, table in limits.items():
        _check(path, f"limits.{part}", table, ["knee_per_s"] if part == "sweep" else Row.MEASURES)
    hold = {"hold_share": tables["hold"]["good_share"]} if tables["hold"] else {}
    return Slo(good=Good(**tables["good"]), limits=limits, **hold, **tables["run"])


def _check(path: Path, name: str, table: dict[str, Any], known: Sequence[str]) -> None:
    for key, value in table.items():
        if key not in known:
            raise BadSlo(f"{path}: [{name}] has no {key!r}; it has {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadSlo(f"{path}: {key} in [{name}] has to be a number")
