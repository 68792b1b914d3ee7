"""What Locust's own page shows beside its charts: a table of token times, and the report as it stands.

Locust's charts draw the time to the first token, since that is what `loadtests.chat` reports to it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
from flask import Response, request
from locust import stats
from locust.web import WebUI

from loadtests.plan import Plan
from loadtests.sample import Tail
from loadtests.slo import Good
from loadtests.summary import Row, rows

KEY = "tokens"
ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {
    "step": "Step",
    "requests": "Requests",
    "ttft_p50_ms": "First token p50 (ms)",
    "ttft_p95_ms": "p95 (ms)",
    "ttft_p99_ms": "p99 (ms)",
    "tpot_p50_ms": "Each further token p50 (ms)",
    "refused_share": "Refused",
    "failed_share": "Failed",
    "lag_p99_ms": "Send lag p99 (ms)",
}


def show(page: WebUI, plan: Plan) -> None:
    """Add the tab `Tokens` and the address `/report` to Locust's page."""
    stats.PERCENTILES_TO_CHART = [0.5, 0.95, 0.99]
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    page.template_args |= {
        "extended_tabs": [{"title": "Tokens", "key": KEY}],
        "extended_tables": [{"key": KEY, "structure": structure}],
    }
    assert page.app is not None
    table = Table(plan)

    @page.app.after_request
    def add_tokens(response: Response) -> Response:
        if request.path == "/stats/requests":
            found = {**(response.get_json() or {}), "extended_stats": [{"key": KEY, "data": table.lines()}]}
            response.set_data(orjson.dumps(found))
        return response

    @page.app.route("/report")
    def report() -> Response:
        command = [sys.executable, "-m", "loadtests", "--report", plan.folder]
        subprocess.run(command, cwd=ROOT, check=False)  # its exit code tells of promises that were not kept
        return Response((Path(plan.folder) / "report.html").read_text(), mimetype="text/html")


class Table:
    """One line for each step that has samples."""

    def __init__(self, plan: Plan) -> None:
        self._steps = plan.steps
        self._tail = Tail(Path(plan.folder))

    def lines(self) -> list[dict[str, str | int | float | None]]:
        """As Locust's page takes them."""
        self._tail.look()
        return [
            {name: self._cell(row, name) for name in COLUMNS}
            for row in rows(self._steps, self._tail.samples, Good())
        ]

    def _cell(self, row: Row, name: str) -> str | int | float | None:
        match name:
            case "step":
                return row.step.name
            case "requests":
                return len(row.samples)
        value = row.value(name)
        return None if value is None else round(value, 2)
