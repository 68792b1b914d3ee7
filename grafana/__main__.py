"""`python -m grafana` writes the dashboards; `--check` only says whether what is committed is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana import bottleneck, budgets, latency, slo

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {
    "latency": latency.dashboard,
    "bottleneck": bottleneck.dashboard,
    "budgets": budgets.dashboard,
    "slo": slo.dashboard,
}


def written() -> dict[Path, str]:
    """Every file, and what should be in it."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": encoder.encode(_numbered(make().build())) + "\n"
        for name, make in DASHBOARDS.items()
    }


def _numbered(dashboard: Dashboard) -> Dashboard:
    """A link to one panel holds its number, so it must not be left to whoever loads the file."""
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
    return dashboard


def stale() -> list[str]:
    """Names of files in the folder that the sources would not write."""
    wanted = written()
    there = {path: path.read_text() for path in FOLDER.glob("*.json")}
    return sorted(path.name for path in wanted.keys() | there if wanted.get(path) != there.get(path))


def main(arguments: list[str]) -> int:
    """The exit code."""
    if arguments == ["--check"]:
        if old := stale():
            print(f"out of date: {', '.join(old)}; run `make dashboards`", file=sys.stderr)
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
