"""Runs a program to its end while the caller is told, every few seconds, that it is still at work."""

from __future__ import annotations

import errno
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from service.engine.embedded.source import MB

LONGEST_QUOTE = 300


def run(
    command: Sequence[str],
    log: Path,
    tell: Callable[[float], None],
    *,
    env: Mapping[str, str],
    every_s: float = 2.0,
) -> int:
    """Run `command` with its output in `log`; return its exit status (minus the signal's number if killed).

    `tell` is called with the seconds gone by, every `every_s`. The child's standard input is a pipe that ends
    when this process does, so that a child that cares can notice; however this call ends, the child has ended
    too. Raises `OSError` (ENOSPC) when the program failed because the disk is full.
    """
    began = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=env) as child,
    ):
        try:
            while _is_running(child, every_s):
                tell(time.monotonic() - began)
        finally:
            child.kill()
    if child.returncode != 0 and _disk_is_full(log):
        raise OSError(errno.ENOSPC, "No space left on device")
    return child.returncode


def _is_running(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    try:
        child.wait(wait_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def _disk_is_full(log: Path) -> bool:
    # On a full disk the program's own words may be lost, since the log is on it.
    return shutil.disk_usage(log.parent).free < MB or any("No space left" in line for line in lines(log))


def lines(log: Path) -> list[str]:
    """The lines written so far that are not blank."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def last_words(log: Path) -> str:
    """The line that tells most about a failure, short enough to quote."""
    said = lines(log)
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    telling = (errors or said or ["nothing"])[-1]
    return telling.rstrip(".")[:LONGEST_QUOTE]
