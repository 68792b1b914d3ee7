"""Runs Locust on a plan, in a process of its own, and tells how it goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.plan import KEY_VARIABLE, VARIABLE, Plan
from loadtests.progress import Progress

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
ROOT = LOCUSTFILE.parent.parent
LOOK_S = 0.5
STOP_S = 20.0


class LaunchError(Exception):
    """Locust did not do its work; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Locust:
    """How Locust is started."""

    processes: int = 1
    web_port: int | None = None

    def run(self, plan: Plan, key: str, say: Callable[[str], None]) -> None:
        """All steps of the plan; returns when they are over.

        Raises:
            LaunchError: with Locust's last words.
        """
        folder = Path(plan.folder)
        plan.write(folder / "plan.json")
        log = folder / "locust.log"
        ours = {VARIABLE: str(folder / "plan.json"), KEY_VARIABLE: key, "PYTHONPATH": str(ROOT)}
        with log.open("ab") as file:
            process = subprocess.Popen(
                self._command(), cwd=ROOT, env={**os.environ, **ours}, stdout=file, stderr=file
            )
        progress = Progress(plan, say)
        try:
            while process.poll() is None:
                progress.look()
                time.sleep(LOOK_S)
        finally:
            _end(process)
        progress.last()
        if process.returncode not in (0, 1):  # 1 says that some requests failed, which is a result
            words = log.read_text(errors="replace").splitlines()[-15:]
            raise LaunchError("Locust ended with an error:\n" + "\n".join(words))

    def _command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--only-summary"]
        if self.processes > 1:
            command += ["--processes", str(self.processes)]
        if self.web_port is None:
            return [*command, "--headless"]
        return [*command, "--web-host", "127.0.0.1", "--web-port", str(self.web_port)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """It gets the signal from a terminal as well; what was measured until then is kept."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
