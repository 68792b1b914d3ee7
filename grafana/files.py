"""The dashboards as files: what should be in each, and whether it is."""

from __future__ import annotations

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


def stale() -> list[str]:
    """Names of files in the folder that the sources would not write."""
    wanted = written()
    there = {path: path.read_text() for path in FOLDER.glob("*.json")}
    return sorted(path.name for path in wanted.keys() | there if wanted.get(path) != there.get(path))


def _numbered(dashboard: Dashboard) -> Dashboard:
    """A link to one panel holds its number, so it must not be left to whoever loads the file."""
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
    return dashboard
