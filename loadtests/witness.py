"""What processes that make load note of themselves: when they begin, what they cut, how late they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson


class Witness:
    """The notes of this process, a line of JSON each."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"witness-{os.getpid()}.jsonl").open("ab", buffering=0)

    def begin(self, monotonic_s: float) -> None:
        """The plan's clock starts at that instant; what was noted before is gone."""
        self._file.truncate(0)
        self._note({"begins_monotonic_s": monotonic_s})

    def cut(self, step: int) -> None:
        """A step would have gone on, had more requests been allowed."""
        self._note({"cut": step})

    def late(self, unix_s: float, late_ms: float) -> None:
        """By how much something came late at most, in the second before that instant."""
        self._note({"unix_s": round(unix_s, 3), "late_ms": round(late_ms, 2)})

    def _note(self, what: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(what, option=orjson.OPT_APPEND_NEWLINE))


def read_witnesses(folder: Path) -> list[dict[str, Any]]:
    """The notes of all processes of a run, as a `Witness` writes them. A torn last line is left out."""
    lines = [line for path in folder.glob("witness-*.jsonl") for line in path.read_bytes().splitlines()]
    return [orjson.loads(line) for line in lines if line.endswith(b"}")]
