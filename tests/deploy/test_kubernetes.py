"""The manifests as kustomize makes them: valid, at one with the code, and with times that fit each other."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from service.settings import PREFIX, Settings
from service.web.authenticate import PROBES
from tests.deploy.dockerfile import DOCKERFILE, ROOT, lineage, stages
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    Manifest,
    check,
    container,
    only,
    pod,
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
    settings = Settings(host="0.0.0.0", **given)
    settings.check_reach()
    assert settings.tenants_file


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


def test_a_variable_made_of_another_comes_after_it(overlay: list[Manifest]) -> None:
    known: set[str] = set()
    for variable in container(overlay)["env"]:
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= known
        known.add(variable["name"])
