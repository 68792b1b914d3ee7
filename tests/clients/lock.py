"""Make locks/*.txt from the clients that `environments.py` names; `make lock` does it too."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from tests.clients.environments import CLIENTS, LOCKS, UV

HEADER = "# Made by `make lock` for Python 3.11 on Linux x86_64. Do not edit.\n"
NOT_LOCKED = "torch\ntriton\n"  # lent by our own environment, where a client needs it


def main() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as excludes:
        excludes.write(NOT_LOCKED)
        excludes.flush()
        for client, requirement in CLIENTS.items():
            lock = LOCKS / f"{client}.txt"
            command = [
                *(str(UV), "pip", "compile", "--quiet", "-", *sys.argv[1:]),
                *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_31"),
                *("--only-binary", ":all:", "--excludes", excludes.name, "--no-header", "--no-annotate"),
                *("--output-file", str(lock)),
            ]
            subprocess.run(command, input=requirement, text=True, check=True, stdout=subprocess.DEVNULL)
            lock.write_text(HEADER + lock.read_text())


if __name__ == "__main__":
    main()
