"""The rules, by Prometheus' own tool: valid, and each alert shown to fire and to stay silent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.grafana.written import RULES, rules
from tests.system import program

TESTS = sorted((RULES / "tests").glob("*.yml"))
ALERTS = [rule for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path) -> str:
    """What it says; fails when it is not content."""
    tool = program("promtool", package="prometheus")
    said = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout


def test_rules_and_configuration_are_valid() -> None:
    promtool("check", "rules", *sorted(RULES.glob("*.yml")))
    promtool("check", "config", RULES.parent / "prometheus.yml")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_do_what_their_tests_say(path: Path) -> None:
    promtool("test", "rules", path)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_shown_to_fire_and_to_stay_silent(alert: dict[str, Any]) -> None:
    asked = [
        case
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
        if case["alertname"] == alert["alert"]
    ]
    assert {bool(case["exp_alerts"]) for case in asked} == {True, False}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_waits_before_it_speaks_and_then_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["for"]
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["annotations"]["summary"]
    assert len(alert["annotations"]["description"]) > 60
