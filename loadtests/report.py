"""Writes the report of a run: one page that needs nothing else, a table as CSV, charts as PNG."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import orjson
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from loadtests.charts import Facts
from loadtests.checks import answers
from loadtests.knee import find
from loadtests.pictures import Picture, pictures
from loadtests.plan import Step
from loadtests.resource import limit_of
from loadtests.result import Result
from loadtests.sample import read_samples
from loadtests.scrape import read_scrapes
from loadtests.slo import Slo
from loadtests.summary import rows
from loadtests.witness import read_witnesses

HERE = Path(__file__).parent
CUT = "--max-requests ended it before its time, so this is not the load that was planned. Allow more."
IN_PAGE = (  # those columns of the CSV that the page shows
    *("part", "step", "requests", "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p95_ms"),
    *("total_p50_ms", "lag_p99_ms", "good_share", "refused_share", "failed_share", "goodput_per_s"),
    *("output_tokens_per_s", "cached_share"),
)


def write_report(folder: Path, slo: Slo) -> Result:
    """Read what a run left in its folder, and write `report.html`, `steps.csv` and `charts/` beside it."""
    noted = orjson.loads((folder / "run.json").read_bytes())
    steps = [Step(**step) for step in noted["steps"]]
    witnessed = read_witnesses(folder)
    late = [(note["unix_s"], note["late_ms"]) for note in witnessed if "late_ms" in note]
    found = rows(steps, read_samples(folder), slo.good, late)
    knee = find(found, slo.hold_share)
    scrapes = read_scrapes(folder / "metrics.jsonl")
    finding = limit_of(knee.row, scrapes) if knee else None
    cut = {note["cut"] for note in witnessed if "cut" in note}
    faults = [
        *slo.faults(found, knee.rate if knee else None),
        *(f"{step.title}: {CUT}" for step in steps if step.number in cut),
    ]
    result = Result(found, knee, finding, faults, noted["about"], list(answers(found, scrapes)))
    drawn = list(pictures(Facts(found, knee, slo.good.ttft_ms, slo.send_lag_p99_ms)))
    (folder / "charts").mkdir(exist_ok=True)
    _write_table(folder / "steps.csv", result)
    (folder / "report.html").write_text(page(result, drawn, slo))
    for picture in drawn:
        picture.png(folder / "charts" / f"{picture.name}.png")
    return result


def page(result: Result, drawn: Sequence[Picture], slo: Slo) -> str:
    """The page, with its charts inside."""
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=select_autoescape())
    charts = [(picture, Markup(picture.svg())) for picture in drawn]  # drawn here, out of numbers
    return templates.get_template("page.html").render(result=result, charts=charts, slo=slo, columns=IN_PAGE)


def _write_table(path: Path, result: Result) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for number, cells in enumerate(result.table):
            if not number:
                writer.writerow(cells)
            writer.writerow(cells.values())
