"""The dashboards as they are written: fresh, explained, and asking for nothing that cannot be answered."""

from __future__ import annotations

import json
from typing import Any

import promql_parser as promql
import pytest
import yaml  # type: ignore[import-untyped]
from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.bottleneck import STATES
from grafana.files import FOLDER, stale
from tests.grafana.written import RULES, expressions, metrics, nodes, panels, rules, shown

ADDS_UP = ("rate", "increase")
COUNTED = ("_total", "_bucket", "_count", "_sum")
PROVISIONED = FOLDER.parent / "provisioning"


def test_committed_dashboards_are_what_their_sources_write() -> None:
    assert stale() == [], "run `make dashboards`"


def test_dashboards_can_be_read_back_whole() -> None:
    for path in FOLDER.glob("*.json"):
        written = json.loads(path.read_text())
        assert Dashboard.from_json(written).title == written["title"]


def test_uids_and_panel_numbers_are_unique() -> None:
    boards = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    assert len({board["uid"] for board in boards}) == len(boards) == 4
    for board in boards:
        numbers = [panel["id"] for panel in board["panels"]]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("board", "panel"), panels(), ids=lambda value: str(value)[:40])
def test_a_panel_has_a_unit_and_says_what_it_means(board: str, panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert 120 < len(panel["description"]) < 520
    assert all(target["legendFormat"] for target in panel["targets"])


def test_limits_lie_where_the_unit_can_reach_them() -> None:
    for _, panel in panels():
        defaults = panel["fieldConfig"]["defaults"]
        steps = defaults.get("thresholds", {}).get("steps", [])
        top = {"percentunit": 1, "s": 60}.get(defaults["unit"], 100)
        assert all(step["value"] is None or 0 <= step["value"] <= top for step in steps), panel["title"]


def test_panels_do_not_overlap() -> None:
    for path in FOLDER.glob("*.json"):
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells


@pytest.mark.parametrize("where", expressions())
def test_counters_are_read_as_rates_and_nothing_else_is(where: str) -> None:
    for node, inside in nodes(expressions()[where]):
        if isinstance(node, promql.VectorSelector) and node.name is not None:
            counted = node.name.endswith(COUNTED)
            assert counted == any(function in ADDS_UP for function in inside), node.name


@pytest.mark.parametrize("where", expressions())
def test_a_sum_of_times_is_never_shown_without_its_count(where: str) -> None:
    names = metrics(expressions()[where])
    for name in names:
        if name.endswith("_sum"):
            assert name.removesuffix("_sum") + "_count" in names


@pytest.mark.parametrize("where", expressions())
def test_quantiles_come_from_buckets_that_were_added_up(where: str) -> None:
    for node, _ in nodes(expressions()[where]):
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            added = node.args[1]
            assert isinstance(added, promql.AggregateExpr) and added.modifier is not None, added
            assert (str(added.op), "le" in added.modifier.labels) == ("sum", True)


def test_panels_and_alerts_read_no_rule_that_is_not_there() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = {name for expr in expressions().values() for name in metrics(expr) if _is_recorded(name)}
    assert read <= recorded
    used_at_last = {name for name in recorded if name in read}
    assert recorded == used_at_last, "a rule nobody reads"


def test_every_state_of_the_verdict_has_a_name() -> None:
    (rule,) = (rule for rule in rules() if rule.get("record") == "instance:twophase_bound:state")
    numbers = {int(node.val) for node, _ in nodes(rule["expr"]) if isinstance(node, promql.NumberLiteral)}
    assert numbers == set(STATES)


def test_every_panel_asks_the_source_that_is_provisioned() -> None:
    sources = yaml.safe_load((PROVISIONED / "datasources" / "twophase.yml").read_text())["datasources"]
    prometheus, tempo = sources
    assert {target["datasource"]["uid"] for target in (query.target for query in shown())} == {
        prometheus["uid"]
    }
    (link,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert link["datasourceUid"] == tempo["uid"]
    assert tempo["type"] == "tempo"  # the Jaeger source does not follow such links


def test_scrapes_are_as_frequent_as_the_source_believes() -> None:
    config = yaml.safe_load((FOLDER.parent / "prometheus.yml").read_text())
    (prometheus, _) = yaml.safe_load((PROVISIONED / "datasources" / "twophase.yml").read_text())[
        "datasources"
    ]
    assert config["global"]["scrape_interval"] == prometheus["jsonData"]["timeInterval"]
    assert {RULES.parent / name for name in config["rule_files"]} == set(RULES.glob("*.yml"))


def test_the_folder_of_dashboards_is_provisioned() -> None:
    (provider,) = yaml.safe_load((PROVISIONED / "dashboards" / "twophase.yml").read_text())["providers"]
    assert (provider["type"], provider["folderUid"]) == ("file", "twophase")


def _is_recorded(name: str) -> bool:
    return ":" in name and not name.startswith("vllm:")
