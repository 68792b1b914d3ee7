"""Runs a command that ends when the benchmark does, however that ends: `python -m bench.leash COMMAND…`.

The kernel keeps the wish across exec, so the command takes this process's place and its number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main() -> None:
    """Ask to be told of the parent's end, then become the command."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before we could ask
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
