"""bench/*.png: what a token and a prompt cost each front end, and how that grows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bench.sample import Measure, Results
from bench.stats import spread

FOLDER = Path(__file__).parent
SIZE = (9.0, 3.6)
DPI = 100


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure, over the size of the loads whose names fit."""

    name: re.Pattern[str]
    measure: Measure
    x: str
    y: str
    scale: str

    def sizes(self, results: Results) -> dict[int, str]:
        """The shapes that were measured by their size, smallest first."""
        shapes = {sample.shape for sample in results.samples}
        return dict(sorted((int(size[1]), name) for name in shapes if (size := self.name.fullmatch(name))))


PANELS = (
    Panel(
        re.compile(r"(\d+) streams"),
        "cpu_us_per_token",
        "streams at once",
        "front-end CPU per token, µs",
        "log",
    ),
    Panel(
        re.compile(r"(\d+) words"),
        "cpu_ms_per_request",
        "words of a prompt that is new",
        "front-end CPU per request, ms",
        "linear",
    ),
)


def draw(results: Results, labels: Mapping[str, str], model: str, folder: Path = FOLDER) -> Path:
    """Draw what was measured of one model; medians, with a bar from the lowest to the highest."""
    found = [panel for panel in PANELS if panel.sizes(results)]
    figure = Figure(SIZE, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        sizes = panel.sizes(results)
        for name in results.contestants:
            values = [results.values(name, shape, panel.measure) for shape in sizes.values()]
            _line(axes, labels[name], list(sizes), values)
        axes.set(xlabel=panel.x, ylabel=panel.y, xscale=panel.scale)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(list(sizes), [f"{size:,}" for size in sizes])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
    path = folder / f"{re.sub(r'[^a-zA-Z0-9.-]+', '-', model)}.png"
    figure.savefig(path, dpi=DPI)
    return path


def _line(axes: Axes, label: str, sizes: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    middles = [spread(one) for one in values]
    medians = [middle.median for middle in middles]
    below = [middle.median - middle.low for middle in middles]
    above = [middle.high - middle.median for middle in middles]
    axes.errorbar(sizes, medians, yerr=[below, above], marker="o", markersize=4, capsize=2, label=label)
