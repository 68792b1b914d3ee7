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
from loadtests.result import Cell, cells
from loadtests.sample import read_samples
from loadtests.slo import Good
from loadtests.summary import rows

KEY = "tokens"
ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {
    "step": "Step",
    "requests": "Requests",
    "ttft_p50_ms": "First token p50 (ms)",
    "ttft_p95_ms": "p95 (ms)",
    "ttft_p99_ms": "p99 (ms)",
    "tpot_p50_ms": "Each further token p50 (ms)",
    "output_tokens_per_s": "Tokens/s",
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

    @page.app.after_request
    def add_tokens(response: Response) -> Response:
        if request.path == "/stats/requests":
            found = {**(response.get_json() or {}), "extended_stats": [{"key": KEY, "data": table(plan)}]}
            response.set_data(orjson.dumps(found))
        return response

    @page.app.route("/report")
    def report() -> Response:
        command = [sys.executable, "-m", "loadtests", "--report", plan.folder]
        subprocess.run(command, cwd=ROOT, check=False)  # its exit code tells of promises that were not kept
        return Response((Path(plan.folder) / "report.html").read_text(), mimetype="text/html")


def table(plan: Plan) -> list[dict[str, Cell]]:
    """One line for each step that has samples."""
    found = rows(plan.steps, read_samples(Path(plan.folder)), Good())
    return [{name: cells(row)[name] for name in COLUMNS} for row in found]
