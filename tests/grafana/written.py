"""Every PromQL expression we ship, where it stands, and what its values may be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser as promql
import yaml  # type: ignore[import-untyped]

from grafana.files import FOLDER

RULES = FOLDER.parent / "rules"
LONGEST_S = 600
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")

# By unit: the least and the most that can be true.
RANGES = {"s": (0, LONGEST_S), "percentunit": (0, 1)}


@dataclass(frozen=True)
class Shown:
    """One query of a panel."""

    dashboard: str
    panel: dict[str, Any]
    target: dict[str, Any]

    @property
    def expr(self) -> str:
        """As it is written, with Grafana's variables."""
        return str(self.target["expr"])

    @property
    def own_axis(self) -> str | None:
        """The unit of the axis that this query has for itself, if it has one."""
        for override in self.panel["fieldConfig"]["overrides"]:
            if override["matcher"] == {"id": "byFrameRefID", "options": self.target["refId"]}:
                return next(str(p["value"]) for p in override["properties"] if p["id"] == "unit")
        return None

    @property
    def unit(self) -> str:
        """Of its values."""
        return self.own_axis or str(self.panel["fieldConfig"]["defaults"]["unit"])

    @property
    def range(self) -> tuple[float, float]:
        """What its values may be."""
        if self.panel["type"] == "heatmap":
            return 0, math.inf  # the unit is that of the buckets; the values are counts
        defaults = self.panel["fieldConfig"]["defaults"]
        return RANGES.get(self.unit, (defaults.get("min", 0), defaults.get("max", math.inf)))

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel['title']}, {self.target['refId']}"


@cache
def panels() -> list[tuple[str, dict[str, Any]]]:
    """Every panel of the committed dashboards, with the dashboard's name."""
    boards = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return [(b["title"], panel) for b in boards for panel in b["panels"] if panel["type"] != "row"]


def shown() -> list[Shown]:
    """Every query of every panel."""
    return [Shown(name, panel, target) for name, panel in panels() for target in panel["targets"]]


@cache
def rules() -> list[dict[str, Any]]:
    """Every rule as written."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def concrete(expr: str, window: str = "10s", whole: str = "5m") -> str:
    """The expression with values in place of Grafana's variables."""
    filled = expr.replace("$instance", ".+").replace("$__rate_interval", window).replace("$__range", whole)
    assert "$" not in filled, expr
    return filled


def expressions() -> dict[str, str]:
    """Every expression, ready to run, by where it stands."""
    of_rules = {
        f"{rule.get('record') or rule['alert']} {rule.get('labels', '')}": rule["expr"] for rule in rules()
    }
    return {str(query): concrete(query.expr) for query in shown()} | of_rules


def nodes(expr: str) -> Iterator[tuple[promql.Expr, tuple[str, ...]]]:
    """Every node of an expression, with the functions it stands in, innermost last."""
    yield from _below(promql.parse(expr), ())


def metrics(expr: str) -> set[str]:
    """Names of the metrics it reads."""
    return {node.name for node, _ in nodes(expr) if isinstance(node, promql.VectorSelector) and node.name}


def watched(expr: str) -> list[str]:
    """What an alert compares with something, which is there although the alert is silent."""
    return [
        node.lhs.prettify()
        for node, _ in nodes(expr)
        if isinstance(node, promql.BinaryExpr)
        and str(node.op) in COMPARISONS
        and not (node.modifier and node.modifier.return_bool)
    ]


def _below(node: promql.Expr, inside: tuple[str, ...]) -> Iterator[tuple[promql.Expr, tuple[str, ...]]]:
    yield node, inside
    match node:
        case promql.BinaryExpr():
            yield from _below(node.lhs, inside)
            yield from _below(node.rhs, inside)
        case promql.Call():
            for argument in node.args:
                yield from _below(argument, (*inside, node.func.name))
        case promql.MatrixSelector():
            yield from _below(node.vector_selector, inside)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _below(node.expr, inside)
