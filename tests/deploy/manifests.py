"""Kubernetes objects as kustomize makes them, and a strict look at each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from tests.deploy.dockerfile import ROOT
from tests.deploy.programs import kubectl

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "fleet")
OLDEST, NEWEST = "1.32", "1.37"  # a sleep before stop is in all of them without a gate
SCHEMAS = Path(__file__).parent / "schemas"

Manifest = dict[str, Any]


def rendered(folder: Path) -> list[Manifest]:
    """All objects of a kustomization, as kubectl would apply them."""
    said = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return objects(said.stdout)


def objects(text: str) -> list[Manifest]:
    """The objects in a YAML text of several."""
    return [it for it in yaml.safe_load_all(text) if it]


def check(manifest: Manifest) -> None:
    """Raises a validation error when the object has a field nobody knows, lacks one, or has a wrong type."""
    own = SCHEMAS / f"{manifest['kind']}.json"
    if own.exists():
        jsonschema.validate(manifest, json.loads(own.read_text()))
        return
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(manifest, version, strict=True)


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one object of its kind."""
    (found,) = (it for it in manifests if it["kind"] == kind)
    return found


def pod(manifests: list[Manifest]) -> Manifest:
    """The template of the service's pods."""
    found: Manifest = only(manifests, "Deployment")["spec"]["template"]
    return found


def container(manifests: list[Manifest]) -> Manifest:
    """The service's container."""
    (found,) = pod(manifests)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def variables(manifests: list[Manifest]) -> dict[str, str]:
    """The container's variables that have a value in the manifest."""
    return {it["name"]: it["value"] for it in container(manifests)["env"] if "value" in it}


def references(manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Every secret key that something reads: the secret's name, and the key."""
    for manifest in manifests:
        for node in _nodes(manifest):
            if "secretKeyRef" in node:
                yield node["secretKeyRef"]["name"], node["secretKeyRef"]["key"]
            if "credentials" in node:
                yield node["credentials"]["name"], node["credentials"]["key"]
            if "secret" in node:
                for item in node["secret"]["items"]:
                    yield node["secret"]["secretName"], item["key"]


def _nodes(value: Any) -> Iterator[Manifest]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)
