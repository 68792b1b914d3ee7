"""`python -m tests.grafana.picture` draws what the dashboards' queries give on a real service under load.

No Grafana is at work: the results are drawn with matplotlib, and the picture says so.
"""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Sequence
from itertools import groupby
from os import environ
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from grafana.bottleneck import STATES
from grafana.files import FOLDER
from tests.grafana.ground import Ground, ground
from tests.grafana.prometheus import Series
from tests.grafana.written import Shown, concrete, shown

PICTURES = FOLDER.parent / "pictures"
CAPTION = (
    "The dashboard's own queries, run on a Prometheus that scraped a real service every second through a "
    "short test load (seconds below). Drawn with matplotlib; this is not a screenshot of Grafana."
)
LEGEND_ROWS = 6
UNITS = {"s": "s", "percentunit": "%", "reqps": "requests/s", "cps": "events/s", "short": "", "none": ""}


def draw(loaded: Ground) -> list[Path]:
    """One picture for each dashboard; where they are."""
    PICTURES.mkdir(exist_ok=True)
    boards = groupby(shown(), key=lambda query: query.dashboard)
    return [_board(loaded, title, list(queries)) for title, queries in boards]


def _board(loaded: Ground, title: str, queries: Sequence[Shown]) -> Path:
    """Panels lie in the rows in which they lie in Grafana."""
    panels = [list(group) for _, group in groupby(queries, key=lambda query: query.panel["id"])]
    rows = [list(row) for _, row in groupby(panels, key=lambda panel: _place(panel)["y"])]
    heights = [max(_place(panel)["h"] for panel in row) for row in rows]
    figure = plt.figure(figsize=(10, 0.26 * sum(heights) + 0.6), layout="constrained")
    # A grid for each row: one for all would leave the room between two panels in a wide panel's middle.
    grid = figure.add_gridspec(len(rows), 1, height_ratios=heights)
    for at, row in enumerate(rows):
        cells = grid[at].subgridspec(1, len(row), width_ratios=[_place(panel)["w"] for panel in row])
        for beside, panel in enumerate(row):
            _panel(loaded, figure.add_subplot(cells[beside]), panel)
    figure.suptitle(title, fontsize=12, fontweight="bold")
    figure.supxlabel(CAPTION, fontsize=7.5, color="#555555")
    path = PICTURES / f"{re.sub(r'[^a-z]+', '-', title.removeprefix('Twophase: ').lower())}.png"
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True}, metadata={"Description": CAPTION})
    plt.close(figure)
    return path


def _place(panel: Sequence[Shown]) -> dict[str, int]:
    place: dict[str, int] = panel[0].panel["gridPos"]
    return place


def _panel(loaded: Ground, ax: Axes, queries: Sequence[Shown]) -> None:
    panel = queries[0].panel
    unit = queries[0].unit
    ax.set_title(panel["title"], fontsize=8.5, loc="left")
    ax.tick_params(labelsize=7)
    ax.set_ylabel(_named(queries[0].panel["fieldConfig"]["defaults"]["unit"]), fontsize=7)
    ax.set_xlim(0, loaded.ended_s - loaded.began_s)
    if unit == "percentunit":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    kind = {"heatmap": _heat, "state-timeline": _states, "stat": _figure}.get(panel["type"], _lines)
    kind(loaded, ax, queries)


def _lines(loaded: Ground, ax: Axes, queries: Sequence[Shown]) -> None:
    panel = queries[0].panel
    stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    found = [(query, series) for query in queries for series in _found(loaded, query)]
    alive = [(query, series) for query, series in found if any(value for _, value in series.samples)] or found
    if stacked:
        _stack(loaded, ax, alive)
    else:
        _overlay(loaded, ax, alive)
    if alive:
        ax.legend(fontsize=6, ncols=math.ceil(len(alive) / LEGEND_ROWS), loc="upper left", framealpha=0.6)
    ax.set_ylim(bottom=0)


def _stack(loaded: Ground, ax: Axes, found: Sequence[tuple[Shown, Series]]) -> None:
    times = np.arange(0, loaded.ended_s - loaded.began_s)
    rows = [np.interp(times, *_xy(loaded, series), left=0, right=0) for _, series in found]
    if rows:
        ax.stackplot(times, rows, labels=[_name(*pair) for pair in found], alpha=0.7)


def _overlay(loaded: Ground, ax: Axes, found: Sequence[tuple[Shown, Series]]) -> None:
    other = None
    for query, series in found:
        if query.own_axis is None:
            ax.plot(*_xy(loaded, series), label=_name(query, series), linewidth=1.2)
            continue
        other = other or ax.twinx()
        other.plot(*_xy(loaded, series), color="tab:red", linestyle="--", linewidth=1)
        other.set_ylabel(f"{_name(query, series)}, {_named(query.own_axis)}", fontsize=7)
        other.tick_params(labelsize=7)
        other.set_ylim(bottom=0)


def _heat(loaded: Ground, ax: Axes, queries: Sequence[Shown]) -> None:
    found = sorted(_found(loaded, queries[0]), key=lambda series: float(series.labels["le"]))
    times = np.arange(0, loaded.ended_s - loaded.began_s)
    below = np.array([np.interp(times, *_xy(loaded, series), left=0) for series in found])
    counts = np.diff(below, axis=0, prepend=0)[:-1]
    counts[counts < 0.5] = np.nan  # left white
    bounds = [float(series.labels["le"]) for series in found[:-1]]
    ax.pcolormesh(times, bounds, counts, cmap="Oranges", shading="nearest")
    ax.set_yscale("log")
    exemplars = loaded.prometheus.exemplars(concrete(queries[0].expr), loaded.began_s, loaded.ended_s)
    when = [exemplar["timestamp"] - loaded.began_s for exemplar in exemplars]
    waits = [float(exemplar["value"]) for exemplar in exemplars]
    ax.scatter(when, waits, marker="D", s=6, color="tab:blue", label="traced requests")
    ax.legend(fontsize=6, loc="upper left")


def _states(loaded: Ground, ax: Axes, queries: Sequence[Shown]) -> None:
    for series in _found(loaded, queries[0]):
        times, values = _xy(loaded, series)
        for state, (name, color) in STATES.items():
            at = [time for time, value in zip(times, values, strict=True) if value == state]
            if at:
                shade = color.replace("dark-gray", "lightgray").replace("dark-", "dark")
                ax.bar(at, 1, width=1.05, color=shade, label=name)
    ax.set_yticks([])
    ax.legend(fontsize=6, ncols=8, loc="lower left", bbox_to_anchor=(0, -0.3), frameon=False)


def _figure(loaded: Ground, ax: Axes, queries: Sequence[Shown]) -> None:
    (series,) = loaded.prometheus.now(concrete(queries[0].expr))
    ax.axis("off")
    ax.text(
        0.5,
        0.5,
        f"{series.samples[-1][1]:.1%}",
        fontsize=22,
        ha="center",
        va="center",
        transform=ax.transAxes,
    )


def _named(unit: str) -> str:
    return UNITS.get(unit, unit.removeprefix("suffix:").strip())


def _found(loaded: Ground, query: Shown) -> list[Series]:
    found = loaded.prometheus.over(concrete(query.expr), loaded.began_s, loaded.ended_s)
    return [series for series in found if any(not math.isnan(value) for _, value in series.samples)]


def _xy(loaded: Ground, series: Series) -> tuple[list[float], list[float]]:
    numbers = [(when - loaded.began_s, value) for when, value in series.samples if not math.isnan(value)]
    return [when for when, _ in numbers], [value for _, value in numbers]


def _name(query: Shown, series: Series) -> str:
    labels: dict[str, Any] = {**series.labels, "instance": "service"}
    return re.sub(r"{{(\w+)}}", lambda found: str(labels.get(found[1], "")), query.target["legendFormat"])


def main() -> None:
    """Start everything, load it, draw."""
    matplotlib.use("Agg")
    cache = Path(environ.get("TWOPHASE_CACHE", "~/.cache/twophase")).expanduser()
    with tempfile.TemporaryDirectory() as folder, ground(cache, Path(folder)) as loaded:
        for path in draw(loaded):
            print(path, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main()
