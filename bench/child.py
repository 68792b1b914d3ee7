"""A process of the benchmark, with all that it starts: begun in a session of its own, and gone in the end."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).resolve().parent.parent
OURS = "TWOPHASE_"
KIND_S = 20  # to end by itself, for a server that has engines to end
ORPHANS_S = 1  # to end by themselves, for processes whose parent has ended
LAST_LINES = 25


class BenchError(Exception):
    """The benchmark cannot go on; the message is for its user."""


class Child:
    """A running command whose output goes to a log file, or whose standard output is read by us."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, *, talks: bool = False
    ) -> None:
        self.log = log
        pipe = subprocess.PIPE if talks else None
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.leash", str(os.getpid()), *command],
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or output,
                stderr=output,
                env={**surroundings(), **environ},
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then ends the others in order
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def tell(self, line: str) -> None:
        """Write one line to a child that talks."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float) -> str | None:
        """Its next line, or None when there is none yet.

        Raises:
            BenchError: it has ended.
        """
        pipe: IO[bytes] | None = self._process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], timeout_s)[0]:
            return None
        line = pipe.readline()
        if not line:
            raise BenchError(f"the process ended\n{self.last_words()}")
        return line.decode().strip()

    def family(self) -> list[psutil.Process]:
        """Every process of its session: itself and all that it has started, orphans as well."""
        return [process for process in psutil.process_iter() if _session(process.pid) == self.pid]

    def ask_to_end(self) -> None:
        """Returns at once; `end` waits."""
        if self.running:
            self._process.terminate()

    def end(self) -> None:
        """Returns when nothing of it is left."""
        try:
            self._process.wait(KIND_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(self.family(), timeout=ORPHANS_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=ORPHANS_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])


def surroundings() -> dict[str, str]:
    """The environment without the user's own settings of the service, which would not be its defaults."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    cache = os.environ.get(OURS + "CACHE")
    return kept if cache is None else {**kept, OURS + "CACHE": cache}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
