"""What a process has used: CPU time to the nanosecond, its own without its children's, and memory."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

RESET_PEAK = "5"  # written to clear_refs, it makes the kernel forget the highest memory use so far


@dataclass(frozen=True, slots=True)
class Used:
    """By one process, between start and stop."""

    cpu_s: float
    peak_mb: float


class Meter:
    """Measures one process of this user, from its making until `stop`."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._clock = cpu_clock(pid)
        (self._folder / "clear_refs").write_text(RESET_PEAK)
        self._since = time.clock_gettime(self._clock)

    def stop(self) -> Used:
        """What has been used since."""
        cpu_s = time.clock_gettime(self._clock) - self._since
        status = (self._folder / "status").read_text()
        peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        return Used(cpu_s, int(peak_kb) / 1000)


def cpu_clock(pid: int) -> int:
    """The clock that counts the CPU time of all threads of a process.

    Tick counts, as ps and psutil have them, come in hundredths of a second: too coarse for a token.
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, f"process {pid} has no CPU clock")
    return clock.value
