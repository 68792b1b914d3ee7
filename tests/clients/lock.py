"""Make locks/*.txt from what each talk says it needs: `make lock`, or `python -m tests.clients.lock`."""

from __future__ import annotations

import subprocess
import sys

from tests.clients.environments import LOCKS, TALKS, UV

HEADER = "# Made by `make lock` from tests/clients/talks, for Python 3.11 on Linux x86_64. Do not edit.\n"


def main() -> None:
    for talk in sorted(TALKS.glob("ask_*.py")):
        lock = LOCKS / f"{talk.stem.removeprefix('ask_')}.txt"
        command = [
            *(str(UV), "pip", "compile", "--quiet", str(talk), *sys.argv[1:]),
            *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_31"),
            *("--only-binary", ":all:", "--no-header", "--no-annotate", "--output-file", str(lock)),
        ]
        subprocess.run(command, check=True)
        lock.write_text(HEADER + lock.read_text().removeprefix(HEADER))


if __name__ == "__main__":
    main()
