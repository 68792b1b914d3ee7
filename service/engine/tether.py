"""Runs inside the engine's own processes, where vLLM loads it as a plugin; imports nothing heavy.

Two things that only a process itself can do: leave the terminal's process group, so that Ctrl-C reaches
the service alone and running answers are finished; and end when the service is gone, however it went.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

LOOK_EVERY_S = 0.5


def tie() -> None:
    """vLLM calls this in each of its processes; in the service's own process there is nothing to do."""
    if multiprocessing.parent_process() is None:
        return
    os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(os.getppid(),), name="tether", daemon=True).start()


def _end_with(parent: int) -> None:
    """An orphan is given to another parent; that is the sign. SIGKILL, since nobody is left to wait."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)
