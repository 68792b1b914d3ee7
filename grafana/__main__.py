"""`python -m grafana` writes the dashboards; `--check` only says whether what is committed is up to date."""

from __future__ import annotations

import sys

from grafana.files import FOLDER, stale, written


def main(arguments: list[str]) -> int:
    """The exit code."""
    if arguments == ["--check"]:
        if old := stale():
            print(f"grafana/dashboards is out of date: {', '.join(old)}; `make dashboards`", file=sys.stderr)
        return int(bool(old))
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for path, text in written().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
