"""Dashboards and rules of `grafana/` as Kubernetes objects, one for each file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
GRAFANA = ROOT / "grafana"
FOLDER = ROOT / "deploy" / "kubernetes" / "components" / "monitoring"
HEADER = "# Made by `make dashboards` from grafana/. Do not edit.\n"
LABELS = {"app.kubernetes.io/name": "twophase"}
OPERATOR = {"release": "kube-prometheus-stack"}  # what the operator's Prometheus selects rules by
SIDECAR = {"grafana_dashboard": "1"}  # what Grafana's sidecar looks for


class _Block(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as they are, so that a change shows as the lines that changed."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Block.add_representer(str, _text)


def written() -> dict[Path, str]:
    """Every file, and what should be in it."""
    boards = sorted((GRAFANA / "dashboards").glob("*.json"))
    return {
        FOLDER / "rules.yaml": _file([_rules()]),
        FOLDER / "dashboards.yaml": _file(_dashboard(board) for board in boards),
    }


def stale() -> list[str]:
    """Names of the files that the sources would write otherwise."""
    return [path.name for path, text in written().items() if not path.exists() or path.read_text() != text]


def _rules() -> dict[str, Any]:
    files = [
        yaml.safe_load((GRAFANA / "rules" / name).read_text()) for name in ("recording.yml", "alerts.yml")
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata("twophase", OPERATOR),
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }


def _dashboard(path: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(f"twophase-dashboard-{path.stem}", SIDECAR),
        "data": {path.name: path.read_text()},
    }


def _metadata(name: str, more: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "namespace": "twophase", "labels": {**LABELS, **more}}


def _file(objects: Iterable[dict[str, Any]]) -> str:
    return HEADER + str(yaml.dump_all(objects, Dumper=_Block, sort_keys=False, width=110))
