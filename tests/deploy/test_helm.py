"""The chart, rendered by helm itself: the manifests of kustomize with values laid over them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from service import __version__
from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import KUBERNETES, Manifest, check, container, objects, only, rendered, variables
from tests.deploy.pace import faults
from tests.deploy.programs import helm

CHART = ROOT / "deploy" / "helm"


def template(*values: str, file: str | None = None) -> subprocess.CompletedProcess[str]:
    chosen = [word for value in values for word in ("--set", value)]
    if file is not None:
        chosen += ["--values", str(CHART / file)]
    command: list[str | Path] = [helm(), "template", "twophase", CHART, "--namespace", "twophase", *chosen]
    return subprocess.run(command, capture_output=True, text=True)


def installed(*values: str, file: str | None = None) -> list[Manifest]:
    said = template(*values, file=file)
    assert said.returncode == 0, said.stderr
    return objects(said.stdout)


def test_helm_has_nothing_to_complain_of() -> None:
    said = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_every_object_is_valid_and_the_times_fit() -> None:
    made = installed()
    for manifest in made:
        check(manifest)
    assert faults(made) == []


def test_without_values_it_is_what_kustomize_makes() -> None:
    ours = {(it["kind"], it["metadata"]["name"]): it for it in installed()}
    theirs = {(it["kind"], it["metadata"]["name"]): it for it in rendered(KUBERNETES / "overlays" / "cpu")}
    del theirs["Namespace", "twophase"]
    assert ours.keys() == theirs.keys()
    for key, manifest in ours.items():
        for name in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            del manifest["metadata"]["labels"][name]
        if manifest["kind"] == "Deployment":
            for it in (manifest, theirs[key]):  # helm sets variables of its own last
                container([it])["env"].sort(key=lambda variable: str(variable["name"]))
        assert manifest == theirs[key]


def test_on_gpus_it_asks_for_what_the_overlay_for_gpus_asks_for() -> None:
    made = installed(file="values-gpu.yaml")
    for manifest in made:
        check(manifest)
    assert faults(made) == []
    ours, theirs = container(made), container(rendered(KUBERNETES / "overlays" / "gpu"))
    assert ours["resources"] == theirs["resources"] and ours["image"] == theirs["image"]
    named = {variable["name"]: variable.get("value") for variable in theirs["env"]}
    ours_named = {variable["name"]: variable.get("value") for variable in ours["env"]}
    assert {name: ours_named[name] for name in named} == named
    assert "claimName: twophase-cache" in template(file="values-gpu.yaml").stdout


@pytest.mark.parametrize("drain_s", [0, 60, 600])
@pytest.mark.parametrize("hang_s", [30, 60, 300])
def test_grace_and_patience_follow_from_drain_and_hang(drain_s: int, hang_s: int) -> None:
    made = installed(f"drainSeconds={drain_s}", f"hangSeconds={hang_s}")
    assert variables(made)["TWOPHASE_DRAIN_S"] == str(drain_s)
    assert faults(made) == []


def test_variables_take_the_place_of_those_there_are() -> None:
    chosen = {"TWOPHASE_TENANTS_FILE": "/elsewhere.toml", "TWOPHASE_MAX_N": "2"}
    made = installed(*(f"env.{name}={value}" for name, value in chosen.items()))
    assert variables(made).items() >= chosen.items()
    names = [it["name"] for it in container(made)["env"]]
    assert len(names) == len(set(names))


def test_weights_may_come_from_a_claim_and_keys_from_any_secret() -> None:
    made = installed("cacheClaim=weights", "secretName=mine")
    volumes = {it["name"]: it for it in only(made, "Deployment")["spec"]["template"]["spec"]["volumes"]}
    assert volumes["cache"] == {"name": "cache", "persistentVolumeClaim": {"claimName": "weights"}}
    assert volumes["tenants"]["secret"]["secretName"] == "mine"
    for variable in container(made)["env"]:
        if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
            assert reference["name"] == "mine"
    for manifest in made:
        check(manifest)


@pytest.mark.parametrize(
    "value",
    ["replica=2", "image.tag=latest", "env.TWOPHASE_DRAIN_S=5", "drainSeconds=-1", "startSeconds=2400"],
)
def test_a_value_that_would_not_work_is_refused(value: str) -> None:
    said = template(value)
    assert said.returncode != 0
    assert value.split("=")[0].split(".")[-1] in said.stderr


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert __version__.startswith(chart["appVersion"])
    assert Path(CHART / "base").resolve() == KUBERNETES / "base"
