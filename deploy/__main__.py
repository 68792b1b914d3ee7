"""`python -m deploy` writes what is made from grafana/; `--check` only says whether that is up to date."""

from __future__ import annotations

import sys

from deploy.monitoring import FOLDER, stale, written


def main(arguments: list[str]) -> int:
    """The exit code."""
    if arguments == ["--check"]:
        if old := stale():
            print(f"{FOLDER} is out of date: {', '.join(old)}; `make dashboards`", file=sys.stderr)
        return int(bool(old))
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for path, text in written().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
