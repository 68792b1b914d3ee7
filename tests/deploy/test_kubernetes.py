"""The manifests as kustomize makes them: valid, at one with the code, and with times that fit each other."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import promql_parser as promql
import pytest
import yaml  # type: ignore[import-untyped]

from deploy import monitoring
from service.settings import PREFIX, Settings
from service.telemetry.collectors import STATES
from service.web.authenticate import PROBES
from tests.deploy.dockerfile import DOCKERFILE, ROOT, lineage, stages
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    Manifest,
    check,
    container,
    only,
    references,
    rendered,
    variables,
)
from tests.deploy.pace import faults

SECRET_KEYS = {"tenants.toml", "cache-secret", "quota-store", "hf-token", "metrics-key"}
COMPONENTS = KUBERNETES / "components"


@pytest.fixture(scope="module")
def made() -> dict[str, list[Manifest]]:
    return {name: rendered(KUBERNETES / "overlays" / name) for name in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, made: dict[str, list[Manifest]]) -> list[Manifest]:
    return copy.deepcopy(made[request.param])


def pod(manifests: list[Manifest]) -> Manifest:
    found: Manifest = only(manifests, "Deployment")["spec"]["template"]
    return found


def test_every_object_is_valid(overlay: list[Manifest]) -> None:
    for manifest in overlay:
        check(manifest)


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "template", "spec", "containers", 0, "readinesProbe"),
        ("spec", "replica"),
        ("metadata", "lable"),
    ],
)
def test_a_field_nobody_knows_is_found(made: dict[str, list[Manifest]], path: tuple[Any, ...]) -> None:
    deployment: Any = copy.deepcopy(only(made["cpu"], "Deployment"))
    place = deployment
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = {}
    with pytest.raises(jsonschema.ValidationError):
        check(deployment)


def test_everything_lies_in_the_namespace_and_carries_the_name(overlay: list[Manifest]) -> None:
    for manifest in overlay:
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"]["namespace"] == only(overlay, "Namespace")["metadata"]["name"]
            assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "twophase"


def test_everything_selects_the_pods(overlay: list[Manifest]) -> None:
    labels = pod(overlay)["metadata"]["labels"]
    deployment = only(overlay, "Deployment")["spec"]["selector"]["matchLabels"]
    budget = only(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    policy = only(overlay, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    service = only(overlay, "Service")["spec"]["selector"]
    for selector in (deployment, budget, policy, service):
        assert selector and selector.items() <= labels.items()


def test_ports_are_one_port(overlay: list[Manifest]) -> None:
    (port,) = container(overlay)["ports"]
    assert port["containerPort"] == Settings().port
    (served,) = only(overlay, "Service")["spec"]["ports"]
    assert (served["targetPort"], served["name"]) == (port["name"], "http")
    (let_in,) = only(overlay, "NetworkPolicy")["spec"]["ingress"]
    assert let_in["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    for name in ("startup", "readiness", "liveness"):
        asked = container(overlay)[f"{name}Probe"]["httpGet"]
        assert asked["port"] == port["name"]
        assert asked["path"] in PROBES


def test_times_fit_each_other(overlay: list[Manifest]) -> None:
    assert faults(overlay) == []


BREAK: dict[str, Callable[[Manifest, Manifest], None]] = {
    "the grace period is shorter": lambda spec, ours: spec.update(terminationGracePeriodSeconds=70),
    "a replica that has begun to drain": lambda spec, ours: ours["lifecycle"]["preStop"]["sleep"].update(
        seconds=0
    ),
    "liveness kills before": lambda spec, ours: ours["livenessProbe"].update(failureThreshold=3),
    "readiness is slower": lambda spec, ours: ours["readinessProbe"].update(periodSeconds=30),
    "a first start": lambda spec, ours: ours["startupProbe"].update(failureThreshold=10),
    "a rollout is given up": lambda spec, ours: ours["startupProbe"].update(failureThreshold=1000),
    "overlap": lambda spec, ours: ours["readinessProbe"].update(timeoutSeconds=6),
}


@pytest.mark.parametrize("sentence", BREAK)
def test_a_time_that_does_not_fit_is_found(made: dict[str, list[Manifest]], sentence: str) -> None:
    broken = copy.deepcopy(made["cpu"])
    BREAK[sentence](pod(broken)["spec"], container(broken))
    (said,) = faults(broken)
    assert sentence in said


def test_a_longer_drain_needs_a_longer_grace(made: dict[str, list[Manifest]]) -> None:
    broken = copy.deepcopy(made["gpu"])
    (drain,) = (it for it in container(broken)["env"] if it["name"] == "TWOPHASE_DRAIN_S")
    drain["value"] = "120"
    assert any("grace period" in said for said in faults(broken))


def test_variables_are_settings_and_the_service_would_start_with_them(overlay: list[Manifest]) -> None:
    named = {it["name"] for it in container(overlay)["env"]}
    assert {it for it in named if it.startswith(PREFIX)} <= {
        PREFIX + it.upper() for it in Settings.model_fields
    }
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in variables(overlay).items()
        if name.startswith(PREFIX)
    }
    assert Settings(host="0.0.0.0", **given).tenants_file


def test_kubernetes_sets_no_variables_that_look_like_settings(overlay: list[Manifest]) -> None:
    # A service of this name would bring TWOPHASE_PORT=tcp://… into every pod of the namespace.
    assert pod(overlay)["spec"]["enableServiceLinks"] is False


def test_a_pod_may_do_nothing_it_need_not(overlay: list[Manifest]) -> None:
    spec, ours = pod(overlay)["spec"], container(overlay)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert ours["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    uid = spec["securityContext"]["runAsUser"]
    for target in ("cpu", "cuda"):
        assert stages(DOCKERFILE.read_text())[target].all("USER") == [str(uid)]


def test_what_the_image_writes_to_is_mounted(overlay: list[Manifest]) -> None:
    mounted = {it["mountPath"] for it in container(overlay)["volumeMounts"] if not it.get("readOnly")}
    volumes = [
        text for stage in lineage(stages(DOCKERFILE.read_text()), "cuda") for text in stage.all("VOLUME")
    ]
    assert {*volumes, "/tmp"} <= mounted
    named = {it["name"] for it in pod(overlay)["spec"]["volumes"]}
    assert {it["name"] for it in container(overlay)["volumeMounts"]} == named


def test_secrets_are_named_and_never_written(overlay: list[Manifest]) -> None:
    assert all(manifest["kind"] != "Secret" for manifest in overlay)
    found = set(references(overlay))
    assert {name for name, _ in found} == {"twophase"}
    assert {key for _, key in found} <= SECRET_KEYS
    told = (ROOT / "deploy" / "README.md").read_text()
    assert all(key in told for key in SECRET_KEYS)


def test_a_gpu_replica_has_a_gpu_and_the_shared_weights(made: dict[str, list[Manifest]]) -> None:
    assert container(made["gpu"])["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (cache,) = (it for it in pod(made["gpu"])["spec"]["volumes"] if it["name"] == "cache")
    claim = only(made["gpu"], "PersistentVolumeClaim")["metadata"]["name"]
    assert cache == {"name": "cache", "persistentVolumeClaim": {"claimName": claim}}


def test_rules_and_dashboards_are_what_grafana_s_sources_give() -> None:
    assert monitoring.stale() == [], "run `make dashboards`"


def test_the_job_is_called_what_the_rules_look_for(made: dict[str, list[Manifest]]) -> None:
    monitor = only(made["fleet"], "ServiceMonitor")["spec"]
    labels = only(made["fleet"], "Service")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (job,) = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["scrape_configs"]
    assert labels[monitor["jobLabel"]] == job["job_name"]
    (endpoint,) = monitor["endpoints"]
    config = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["global"]
    assert endpoint["interval"] == config["scrape_interval"]
    assert endpoint["port"] in [port["name"] for port in only(made["fleet"], "Service")["spec"]["ports"]]


def test_whoever_scales_owns_the_number_of_replicas(made: dict[str, list[Manifest]]) -> None:
    assert only(made["gpu"], "Deployment")["spec"]["replicas"] == 2
    assert "replicas" not in only(made["fleet"], "Deployment")["spec"]
    assert only(made["fleet"], "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "twophase"


def test_scaling_asks_for_metrics_there_are(made: dict[str, list[Manifest]]) -> None:
    recorded = {
        rule["record"]
        for group in only(made["fleet"], "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    documented = set(re.findall(r"^\| `(twophase_\w+)`", (ROOT / "README.md").read_text(), re.M))
    for trigger in only(made["fleet"], "ScaledObject")["spec"]["triggers"]:
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


def test_numbers_of_the_scaler_fit_each_other(made: dict[str, list[Manifest]]) -> None:
    spec = copy.deepcopy(only(made["fleet"], "ScaledObject")["spec"])
    grace_s = pod(made["fleet"])["spec"]["terminationGracePeriodSeconds"]
    assert scaling_faults(spec, grace_s) == []
    spec["advanced"]["scalingModifiers"]["target"] = "13"
    assert scaling_faults(spec, grace_s) == ["targets differ", "thresholds differ"]
    assert "it shrinks faster than it drains" in scaling_faults(spec, 600)


def test_the_guard_is_the_burn_that_pages(made: dict[str, list[Manifest]]) -> None:
    (burn,) = (it for it in only(made["fleet"], "ScaledObject")["spec"]["triggers"] if it["name"] == "burn")
    alerts = (ROOT / "grafana" / "rules" / "alerts.yml").read_text()
    assert f"> {burn['metadata']['threshold']} and" in alerts


def test_the_pool_is_of_our_pods_and_the_route_leads_to_it(made: dict[str, list[Manifest]]) -> None:
    pool = only(made["fleet"], "InferencePool")
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod(made["fleet"])["metadata"]["labels"].items()
    assert pool["spec"]["targetPorts"] == [{"number": container(made["fleet"])["ports"][0]["containerPort"]}]
    (rule,) = only(made["fleet"], "HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["group"] + "/v1", backend["kind"]) == (pool["apiVersion"], pool["kind"])
    assert backend["name"] == pool["metadata"]["name"]


def test_metrics_without_a_key_are_not_routed_to(made: dict[str, list[Manifest]]) -> None:
    assert variables(made["fleet"])["TWOPHASE_PUBLIC_METRICS"] == "1"
    assert "TWOPHASE_PUBLIC_METRICS" not in variables(made["gpu"])
    (rule,) = only(made["fleet"], "HTTPRoute")["spec"]["rules"]
    assert [match["path"] for match in rule["matches"]] == [{"type": "PathPrefix", "value": "/v1"}]
