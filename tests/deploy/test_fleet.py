"""What a fleet adds to the manifests: metrics, rules and dashboards, scaling, and a gateway that picks."""

from __future__ import annotations

import copy
import re

import promql_parser as promql
import pytest
import yaml  # type: ignore[import-untyped]

from deploy import monitoring
from service.telemetry.collectors import STATES
from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import KUBERNETES, Manifest, container, only, pod, rendered, variables


@pytest.fixture(scope="module")
def fleet() -> list[Manifest]:
    return rendered(KUBERNETES / "overlays" / "fleet")


@pytest.fixture(scope="module")
def single() -> list[Manifest]:
    return rendered(KUBERNETES / "overlays" / "gpu")


def test_rules_and_dashboards_are_what_grafana_s_sources_give() -> None:
    assert monitoring.stale() == [], "run `make dashboards`"


def test_the_job_is_called_what_the_rules_look_for(fleet: list[Manifest]) -> None:
    monitor = only(fleet, "ServiceMonitor")["spec"]
    labels = only(fleet, "Service")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (job,) = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["scrape_configs"]
    assert labels[monitor["jobLabel"]] == job["job_name"]
    (endpoint,) = monitor["endpoints"]
    config = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["global"]
    assert endpoint["interval"] == config["scrape_interval"]
    assert endpoint["port"] in [port["name"] for port in only(fleet, "Service")["spec"]["ports"]]


def test_whoever_scales_owns_the_number_of_replicas(fleet: list[Manifest], single: list[Manifest]) -> None:
    assert only(single, "Deployment")["spec"]["replicas"] == 2
    assert "replicas" not in only(fleet, "Deployment")["spec"]
    assert only(fleet, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "twophase"


def test_scaling_asks_for_metrics_there_are(fleet: list[Manifest]) -> None:
    recorded = {
        rule["record"]
        for group in only(fleet, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    documented = set(re.findall(r"^\| `(twophase_\w+)`", (ROOT / "README.md").read_text(), re.M))
    for trigger in only(fleet, "ScaledObject")["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        promql.parse(query)
        names = set(re.findall(r"[a-z_]*:?twophase_[\w:]+", query))
        assert names and names <= recorded | documented, query
        for states in re.findall(r'state=~"([^"]+)"', query):
            assert set(states.split("|")) < set(STATES)


def scaling_faults(spec: Manifest, grace_s: int) -> list[str]:
    """What does not fit in the numbers of a scaler."""
    modifiers = spec["advanced"]["scalingModifiers"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    triggers = {it["name"]: it["metadata"]["threshold"] for it in spec["triggers"]}
    used = set(re.findall(r"[a-z]+", modifiers["formula"])) - {"max"}
    relations = {
        "targets differ": f"* {modifiers['target']})" in modifiers["formula"],
        "thresholds differ": triggers["load"] == modifiers["target"],
        "guards differ": f"burn > {triggers['burn']} ?" in modifiers["formula"],
        "names differ": used == set(triggers),
        "too few": 2 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"],
        "it shrinks faster than it drains": behavior["scaleDown"]["stabilizationWindowSeconds"] > grace_s
        and all(it["periodSeconds"] > grace_s for it in behavior["scaleDown"]["policies"]),
    }
    return [name for name, holds in relations.items() if not holds]


def test_numbers_of_the_scaler_fit_each_other(fleet: list[Manifest]) -> None:
    spec = copy.deepcopy(only(fleet, "ScaledObject")["spec"])
    grace_s = pod(fleet)["spec"]["terminationGracePeriodSeconds"]
    assert scaling_faults(spec, grace_s) == []
    spec["advanced"]["scalingModifiers"]["target"] = "13"
    assert scaling_faults(spec, grace_s) == ["targets differ", "thresholds differ"]
    assert "it shrinks faster than it drains" in scaling_faults(spec, 600)


def test_the_guard_is_the_burn_that_pages(fleet: list[Manifest]) -> None:
    (burn,) = (it for it in only(fleet, "ScaledObject")["spec"]["triggers"] if it["name"] == "burn")
    alerts = (ROOT / "grafana" / "rules" / "alerts.yml").read_text()
    assert f"> {burn['metadata']['threshold']} and" in alerts


def test_the_pool_is_of_our_pods_and_the_route_leads_to_it(fleet: list[Manifest]) -> None:
    pool = only(fleet, "InferencePool")
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod(fleet)["metadata"]["labels"].items()
    assert pool["spec"]["targetPorts"] == [{"number": container(fleet)["ports"][0]["containerPort"]}]
    (rule,) = only(fleet, "HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["group"] + "/v1", backend["kind"]) == (pool["apiVersion"], pool["kind"])
    assert backend["name"] == pool["metadata"]["name"]


def test_metrics_without_a_key_are_not_routed_to(fleet: list[Manifest], single: list[Manifest]) -> None:
    assert variables(fleet)["TWOPHASE_PUBLIC_METRICS"] == "1"
    assert "TWOPHASE_PUBLIC_METRICS" not in variables(single)
    (rule,) = only(fleet, "HTTPRoute")["spec"]["rules"]
    assert [match["path"] for match in rule["matches"]] == [{"type": "PathPrefix", "value": "/v1"}]
