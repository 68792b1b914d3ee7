"""The compose file and the configurations it mounts, held to each other and to the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]

from service.settings import PREFIX, Settings
from service.telemetry import conventions
from service.telemetry.record import Outcome
from service.web.server import CLOSING_S
from tests.deploy.dockerfile import DOCKERFILE, ROOT, stages
from tests.deploy.test_image import TAG
from tests.system import program

FOLDER = ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
KEPT_ALIVE_S = 5  # that long the engine's core may take to end before it is killed
OURS = ("twophase-cpu", "twophase-gpu")
CONFIGS = ("prometheus.yml", "otel-collector.yaml", "tempo.yaml")
LISTENS = {  # beside what the files here say
    "prometheus": {9090},
    "grafana": {3000},
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = read(FILE)["services"]
    return found


def mounts(service: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Files and folders of the repository, and where a container sees them."""
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if source.startswith("."):
            yield (FOLDER / source).resolve(), Path(target)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_every_image_is_pinned_or_built_from_a_target_there_is(services: dict[str, Any]) -> None:
    targets = stages(DOCKERFILE.read_text())
    for name, service in services.items():
        if build := service.get("build"):
            assert build["target"] in targets, name
            assert (FOLDER / build["context"]).resolve() == ROOT
            assert ROOT / build["dockerfile"] == DOCKERFILE
        else:
            assert TAG.fullmatch(service["image"]), name


def test_every_mounted_path_is_there(services: dict[str, Any]) -> None:
    found = [source for service in services.values() for source, _ in mounts(service)]
    assert len(found) >= 6
    assert [path for path in found if not path.exists()] == []


def test_every_volume_is_declared_and_used(services: dict[str, Any]) -> None:
    named = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(read(FILE)["volumes"])


def test_configurations_are_mounted_where_their_programs_look(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for option in service.get("command", []):
            if (found := re.fullmatch(r"-{1,2}config[.=](?:file=)?(/.*)", option)) is not None:
                assert Path(found[1]) in [target for _, target in mounts(service)], name
    assert {path.name for service in services.values() for path, _ in mounts(service)} >= set(CONFIGS)


@pytest.mark.parametrize("name", OURS)
def test_the_service_gets_settings_that_exist_and_time_to_drain(services: dict[str, Any], name: str) -> None:
    given = services[name]["environment"]
    ours = {key.removeprefix(PREFIX).lower(): value for key, value in given.items() if key.startswith(PREFIX)}
    ours = {key: value for key, value in ours.items() if not value.startswith("${")}
    settings = Settings(host="0.0.0.0", **ours)
    settings.check_reach()
    unknown = {key for key in given if key.startswith(PREFIX)} - {
        PREFIX + field.upper() for field in Settings.model_fields
    }
    assert unknown == set()
    grace_s = seconds(services[name]["stop_grace_period"])
    assert grace_s > settings.drain_s + CLOSING_S + KEPT_ALIVE_S


def test_what_has_no_keys_is_published_to_this_machine_alone(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) >= 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_service_waits_only_for_what_can_say_that_it_is_ready(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, wish in service.get("depends_on", {}).items():
            assert other in services, name
            healthy = wish["condition"] == "service_healthy"
            assert healthy == (other in OURS or "healthcheck" in services[other]), (name, other)
            hidden = set(services[other].get("profiles", [])) - set(service.get("profiles", []))
            assert not hidden or wish.get("required") is False, f"{name} cannot start without {other}"


def listening(services: dict[str, Any]) -> dict[str, set[int]]:
    """Names in the network of the containers, and the ports that something listens on there."""
    receivers = read(FOLDER / "otel-collector.yaml")["receivers"]["otlp"]["protocols"].values()
    tempo = read(FOLDER / "tempo.yaml")
    distributed = tempo["distributor"]["receivers"]["otlp"]["protocols"].values()
    ours = {alias for name in OURS for alias in services[name]["networks"]["default"]["aliases"]}
    return {
        **LISTENS,
        **{name: {Settings().port} for name in ours},
        "otel-collector": {int(it["endpoint"].rpartition(":")[2]) for it in receivers},
        "tempo": {tempo["server"]["http_listen_port"]}
        | {int(it["endpoint"].rpartition(":")[2]) for it in distributed},
    }


def test_every_address_is_of_a_service_that_listens_there(services: dict[str, Any]) -> None:
    known = listening(services)
    written = [text for name in CONFIGS for text in strings(read(FOLDER / name))]
    written += [text for service in services.values() for text in strings(service.get("environment", {}))]
    written += [text for service in services.values() for text in strings(service.get("command", []))]
    asked = set()
    for text in written:
        if found := re.fullmatch(r"(?:http://)?([a-z-]+):(\d+)", text):
            assert int(found[2]) in known.get(found[1], ()), text
            asked.add(found[1])
    assert asked == {"twophase", "prometheus", "otel-collector", "tempo"}
    for service in services.values():
        for text in service.get("healthcheck", {}).get("test", []):
            if text.startswith("http://"):
                assert any(urlsplit(text).port in ports for ports in known.values()), text


def test_published_ports_are_those_that_programs_listen_on(services: dict[str, Any]) -> None:
    known = listening(services)
    for name, service in services.items():
        for port in service.get("ports", []):
            assert int(port.rpartition(":")[2]) in known["twophase" if name in OURS else name]


def test_prometheus_keeps_exemplars_and_reads_our_rules(services: dict[str, Any], tmp_path: Path) -> None:
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]
    for source, target in mounts(services["prometheus"]):
        place = tmp_path / target.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place)
        else:
            shutil.copyfile(source, place)
    promtool = program("promtool", package="prometheus")
    config = tmp_path / "etc" / "prometheus" / "prometheus.yml"
    said = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("rules found") == 2


def test_prometheus_differs_from_the_one_for_a_single_machine_only_in_its_target() -> None:
    here, there = read(FOLDER / "prometheus.yml"), read(ROOT / "grafana" / "prometheus.yml")
    for config in (here, there):
        for job in config["scrape_configs"]:
            del job["static_configs"]
    assert here == there


def test_grafana_gets_what_its_provisioning_asks_for(services: dict[str, Any]) -> None:
    seen = {target: source for source, target in mounts(services["grafana"])}
    provisioning = seen[Path("/etc/grafana/provisioning")]
    (provider,) = read(provisioning / "dashboards" / "twophase.yml")["providers"]
    assert any(seen[Path(provider["options"]["path"])].glob("*.json"))
    sources = (provisioning / "datasources" / "twophase.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", sources)) <= services["grafana"]["environment"].keys()


def test_traces_are_kept_by_attributes_that_our_spans_have() -> None:
    text = (FOLDER / "otel-collector.yaml").read_text()
    ours = {value for value in vars(conventions).values() if isinstance(value, str)}
    asked = set(re.findall(r"twophase\.[a-z_.]+", text))
    assert len(asked) == 3
    assert asked <= ours
    assert f'attributes["{conventions.TTFT_MS}"] > {Settings().slo_ttft_ms}\n' in text


def test_traces_are_kept_by_outcomes_there_are() -> None:
    policies = read(FOLDER / "otel-collector.yaml")["processors"]["tail_sampling"]["policies"]
    wanted = [value for it in policies for value in it.get("string_attribute", {}).get("values", [])]
    assert wanted and set(wanted) <= set(get_args(Outcome))


def test_every_part_of_the_collector_is_used_and_defined() -> None:
    config = read(FOLDER / "otel-collector.yaml")
    (pipeline,) = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(config[kind])
    assert pipeline["processors"][0] == "memory_limiter"  # it can refuse only what nothing else holds yet
