"""The report: what it says, draws and writes, from samples on disk."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadtests.checks import answers
from loadtests.pictures import CHARTS
from loadtests.plan import Step
from loadtests.report import write_report
from loadtests.sample import Outcome, Sample
from loadtests.scenarios import AFTER_SIGNAL
from loadtests.scrape import Scrape
from loadtests.slo import Good, Slo
from loadtests.summary import Row, rows
from tests.loadtests.samples import sample

PHASES = {
    "render_ms": 1.0,
    "admission_ms": 0.5,
    "queue_ms": 20.0,
    "prefill_ms": 60.0,
    "decode_ms": 180.0,
    "ttft_ms": 99.0,
}
STEPS = [
    Step(0, "streaming", "streamed", "chat,stream=1", 1, 10, users=1, requests=3),
    Step(1, "streaming", "whole", "chat,stream=0", 1, 10, users=1, requests=3),
    Step(2, "length", "50 words", "long-prompt,words=50", 1, 10, users=1, requests=3),
    Step(3, "concurrency", "1 user", "chat", 1, 10, users=1),
    Step(4, "concurrency", "2 users", "chat", 1, 10, users=2),
    Step(5, "rate", "1/s", "chat", 1, 10, rate_per_s=1),
    Step(6, "rate", "2/s", "chat", 1, 10, rate_per_s=2),
    Step(7, "steady", "steady", "chat", 1, 10, rate_per_s=1),
]


def of_step(step: Step) -> Iterator[Sample]:
    """Twenty requests; the highest rate is answered badly."""
    for number in range(20):
        refused = step.name == "2/s" and number % 2 == 0
        one = sample(
            80.0 + number, outcome="refused" if refused else "ok", at_s=step.number * 20 + number / 2
        )
        yield replace(one, step=step.number, into_s=number / 2, prompt_tokens=40, phases=PHASES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every part that is drawn, its report written."""
    folder = tmp_path_factory.mktemp("run")
    about = {"model": "<script>alert(1)</script>", "date": "d", "url": "u", "scenario": "s", "workload": "w"}
    (folder / "run.json").write_bytes(orjson.dumps({"about": about, "steps": STEPS}))
    lines = b"".join(one.to_json() for step in STEPS for one in of_step(step))
    (folder / "samples-1.jsonl").write_bytes(lines + b'{"step": 0, "torn')
    (folder / "witness-1.jsonl").write_bytes(b'{"unix_s":1001.0,"late_ms":3.5}\n')
    assert not write_report(folder, Slo()).faults
    return folder


def test_a_step_that_ran_out_of_requests_fails_the_run(folder: Path, tmp_path: Path) -> None:
    cut = shutil.copytree(folder, tmp_path / "cut")
    (cut / "witness-2.jsonl").write_bytes(b'{"cut":6}\n{"cut":6')
    [fault] = write_report(cut, Slo()).faults
    assert fault.startswith("rate 2/s: --max-requests ended it")


def test_every_chart_is_drawn_in_the_page_and_beside_it(folder: Path) -> None:
    names = {name for name, *_ in CHARTS}
    assert {path.stem for path in (folder / "charts").glob("*.png")} == names
    page = (folder / "report.html").read_text()
    assert set(re.findall(r'<figure id="([\w-]+)">', page)) == names
    assert page.count("<svg") == len(names)


def test_the_page_needs_nothing_else(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']*""", page)
    assert "<script" not in page


def test_the_table_has_a_line_for_each_step(folder: Path) -> None:
    with (folder / "steps.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == [step.name for step in STEPS]
    refused = lines[6]
    assert (refused["outcome_refused"], refused["refused_share"], refused["requests"]) == ("10", "0.5", "20")
    assert float(lines[0]["ttft_p50_ms"]) == pytest.approx(89.5)


def test_the_report_says_where_the_knee_is(folder: Path) -> None:
    assert re.search(r"Up to 1\.\d+ requests/s are answered well", (folder / "report.html").read_text())


def test_what_came_while_a_step_settled_is_not_counted() -> None:
    step = Step(0, "rate", "1/s", "chat", 0, 10, rate_per_s=1, settle_s=2)
    early, late = sample(5000.0, at_s=1.0), sample(100.0, at_s=3.0)
    (row,) = rows([step], [early, late], Good())
    assert (row.value("ttft_p99_ms"), row.sent) == (100.0, 2)


def part(name: str, step: str, *outcomes: Outcome, number: int = 0) -> Row:
    """A step whose requests ended like this, two a second."""
    made = [sample(outcome=o, at_s=number * 20 + n / 2) for n, o in enumerate(outcomes)]
    return rows([Step(0, name, step, "chat", 0, 10, rate_per_s=2)], made, Good())[0]


def test_clients_that_left_are_looked_for_in_the_engine() -> None:
    left, after = (
        part("disconnects", "clients leave", "left", "ok"),
        part("disconnects", "after", "ok", number=1),
    )
    busy, idle = (
        [Scrape(1003.0 + n, {"vllm:num_requests_running": running})] for n, running in ((0, 2), (1, 0))
    )
    assert "let go of them" in next(answers([left, after], [*busy, *idle]))
    assert "still worked on 2" in next(answers([left, after], busy))
    assert "no metric" in next(answers([left, after], []))
    early = [Scrape(1001.0, {"vllm:num_requests_running": 2}), *idle]
    soon = part("disconnects", "after", "ok")
    assert "so short a --pause" in next(answers([left, soon], early))


def test_a_server_that_has_gone_after_its_drain_is_no_failure() -> None:
    row = part("drain", AFTER_SIGNAL, "ok", "refused", "no_connection")
    assert not Slo().faults([row], None)
    assert "1 requests were refused and 1 found nobody" in next(answers([row], []))
    assert Slo().faults([part("drain", AFTER_SIGNAL, "ok", "cut")], None)


def test_an_overload_tells_of_its_refusals() -> None:
    said = " ".join(answers([part("overload", "4 × 1/s", "ok", "refused", "refused")], []))
    assert "2 of 3 were refused" in said
    assert "0 of them were told when to come back" in said
