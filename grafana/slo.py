"""What was promised, whether it was kept, and how fast the allowance for misses is being used up."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.stat import Panel as Figure
from grafana_foundation_sdk.builders.timeseries import Panel as Lines

from grafana.panels import REQUESTS, SHARE, TIMES, Query, against, board, figure, lines, row, stacked
from grafana.promql import gained, rate

SLO = "twophase_slo_total"
RANGE = "$__range"
WARNING, PAGE = 6, 14.4  # as in rules/alerts.yml


def dashboard() -> Dashboard:
    """The dashboard *SLO*."""
    made = board(
        "slo",
        "SLO",
        "Two promises: the first token in time, and an answer at all. The objectives are in the recording "
        "rules, the time to first token in TWOPHASE_SLO_TTFT_MS.",
    )
    figures = [of(slo) for of in (kept, left) for slo in ("ttft", "availability")]
    row(made, "In the time shown", *figures, height=5)
    row(made, "Goodput", goodput(), outcomes())
    row(made, "How fast the allowance goes", burn("ttft"), burn("availability"))
    return made


def kept(slo: str) -> Figure:
    """The share of promises kept."""
    title, about, goal = {
        "ttft": (
            "First token in time",
            "Answers whose first token came within the promised time, waiting included. Below the objective: "
            "see on Bottleneck whether queue or prefill takes the time.",
            0.95,
        ),
        "availability": (
            "Answered",
            "Requests that were answered, of those that were not the caller's own fault. Refusals for "
            "lack of capacity are misses: below the objective, add capacity, or find what fails under "
            "outcomes.",
            0.995,
        ),
    }[slo]
    met = gained(SLO, over=RANGE, slo=slo, result="met")
    query = Query(f"{met} / {gained(SLO, over=RANGE, slo=slo)}", slo)
    return figure(title, SHARE, about, query, (goal, "green")).max(1).decimals(2)


def left(slo: str) -> Figure:
    """What is left of the error budget."""
    title = {"ttft": "Allowance left, first token", "availability": "Allowance left, answers"}[slo]
    missed = f"{gained(SLO, over=RANGE, slo=slo, result='missed')} / {gained(SLO, over=RANGE, slo=slo)}"
    allowed = f'(1 - scalar(slo:twophase_objective:ratio{{slo="{slo}"}}))'
    return (
        figure(
            title,
            SHARE,
            "An objective below 100 % allows some misses. This is what is left of them for the time shown; "
            "at zero the objective is missed. Choose 30 days above to plan by it: while much is left, take "
            "risks; when it is gone, fix what burns it before anything else.",
            Query(f"clamp_min(1 - {missed} / {allowed}, 0)", slo),
            (0.2, "orange"),
            (0.5, "green"),
        )
        .max(1)
        .decimals(1)
    )


def goodput() -> Lines:
    """Goodput against load."""
    return lines(
        "Goodput: answers begun in time",
        REQUESTS,
        "The load a service can carry is what it answers in time, not what it accepts. If goodput falls "
        "while requests rise, waiting lines eat the capacity: refuse earlier, or add replicas before that "
        "point.",
        Query(rate("twophase_requests_total"), "requests"),
        Query(rate(SLO, slo="ttft", result="met"), "first token in time"),
        Query(rate("twophase_requests_total", outcome="ok"), "complete answers"),
    )


def outcomes() -> Lines:
    """Outcomes."""
    return stacked(
        "Requests by outcome",
        REQUESTS,
        "How every request ended, those included that never reached the engine. engine_error is for the log "
        "and the traces of that moment; overloaded and deadline for capacity; client_abort for latency, "
        "since people leave when they wait; invalid and budget_rejected for the callers' developers.",
        Query(rate("twophase_requests_total", by="outcome"), "{{outcome}}"),
    )


def burn(slo: str) -> Lines:
    """Burn rates over a short and a long window."""
    title = {"ttft": "Burn rate, first token", "availability": "Burn rate, answers"}[slo]
    return against(
        lines(
            title,
            TIMES,
            "Misses, as a multiple of what the objective allows: at 1 a month's allowance lasts a month, at "
            "14.4 two days. The short line shows what happens now, the long ones whether it lasts. An alert "
            "wants both above its line, so that it comes quickly, goes quickly, and ignores a blip.",
            *(
                Query(f'max(job_slo:twophase_burn:ratio_rate{window}{{slo="{slo}"}})', f"over {window}")
                for window in ("5m", "1h", "6h")
            ),
        ),
        (WARNING, "orange"),
        (PAGE, "red"),
    )
