"""What Ray Serve is given: configs, marks of requests, and where these go. Without Ray."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from bench.fleet import CALLBACK
from deploy.ray.placement import Placement
from deploy.ray.prefix import BLOCK_BYTES, MOST_BLOCKS, marks
from service.settings import Settings
from service.web.server import CLOSING_S
from tests.deploy.dockerfile import ROOT
from tests.deploy.pace import ENGINE_END_S

FOLDER = ROOT / "deploy" / "ray"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
SCALER = "deploy/kubernetes/components/scaling/scaledobject.yaml"
MOST_SEQUENCES = 1024  # that vLLM runs at once where nobody says otherwise; four times as many may wait
SYSTEM = {"role": "system", "content": "You are a patient clerk. " * 80}


def talk(*texts: str) -> dict[str, Any]:
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": [SYSTEM, *turns]}


def test_a_conversation_that_goes_on_keeps_its_marks() -> None:
    first = marks("acme", talk("Tell me of the sea. " * 40))
    second = marks("acme", talk("Tell me of the sea. " * 40, "It is wide. " * 90, "And deep?"))
    assert len(first) >= 4
    assert second[-len(first) :] == first and len(second) > len(first)


def test_conversations_share_marks_as_far_as_they_are_alike() -> None:
    one, other = marks("acme", talk("sea " * 300)), marks("acme", talk("sun " * 300))
    shared = set(one) & set(other)
    assert shared and one[0] not in shared and one[-1] in shared


@pytest.mark.parametrize("change", [{"model": "other"}, {"tools": [{"name": "clock"}]}])
def test_another_model_and_other_tools_are_another_beginning(change: dict[str, Any]) -> None:
    body = talk("sea " * 300)
    assert not set(marks("acme", body)) & set(marks("acme", {**body, **change}))


def test_groups_share_no_mark() -> None:
    body = talk("sea " * 300)
    assert not set(marks("acme", body, "s")) & set(marks("globex", body, "s"))


def test_a_session_comes_first_and_a_short_request_has_nothing_else() -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    assert marks("acme", body) == []
    (session,) = marks("acme", body, "s")
    assert marks("acme", talk("sea " * 300), "s")[0] == session


@pytest.mark.parametrize("field", ["prompt", "input", "instructions", "system"])
def test_every_api_has_marks(field: str) -> None:
    assert len(marks("acme", {field: "x" * (3 * BLOCK_BYTES)})) == 3


def test_marks_of_an_endless_prompt_are_bounded() -> None:
    assert len(marks("acme", {"prompt": "x" * 10**6})) == MOST_BLOCKS


def test_what_begins_alike_goes_to_the_same_replica() -> None:
    placement = Placement[str]()
    idle = {"a": 0, "b": 0}
    homes = {name: placement.place([name], idle)[0] for name in "12345678"}
    assert Counter(homes.values()) == {"a": 4, "b": 4}
    for name, home in homes.items():
        assert placement.place([f"{name} longer", name], idle)[0] == home


def test_an_overloaded_replica_is_left_and_the_other_is_then_known_too() -> None:
    placement = Placement[str]()
    home, other = placement.place(["prefix"], {"a": 0, "b": 0})
    assert placement.place(["one", "prefix"], {home: 8, other: 1})[0] == other
    assert placement.place(["one", "prefix"], {home: 0, other: 1})[0] == other, "the longest part counts"
    assert placement.place(["two", "prefix"], {home: 1, other: 0})[0] == other, "both hold it: the idler one"


def test_a_replica_that_is_gone_is_not_chosen_and_a_new_one_gets_its_share() -> None:
    placement = Placement[str]()
    for name in "1234":
        placement.place([name], {"a": 0})
    assert placement.place(["1"], {"b": 0}) == ["b"]
    assert placement.place(["2"], {"a": 6, "b": 0})[0] == "b"


def test_every_replica_is_offered_in_the_order_of_its_load() -> None:
    assert Placement[str]().place([], {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]


def test_short_requests_are_spread_on_an_idle_fleet() -> None:
    placement = Placement[int]()
    assert Counter(placement.place([], dict.fromkeys(range(4), 0))[0] for _ in range(400)) == dict.fromkeys(
        range(4), 100
    )


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    placement = Placement[str](most_marks=10)
    (home, other) = placement.place(["old"], {"a": 0, "b": 0})
    placement.place([str(number) for number in range(10)], {other: 0})
    busier_home = {home: 1, other: 0}
    assert placement.place(["old"], busier_home)[0] == other


def test_loads_stay_near_each_other_however_unevenly_prefixes_are_asked_for() -> None:
    draw, placement = random.Random(1), Placement[str]()
    running: list[str] = []
    sent: Counter[str] = Counter()
    for _ in range(4000):
        prefix = draw.choices("abcdefgh", weights=[40, 20, 10, 10, 5, 5, 5, 5])[0]
        loads = {name: running.count(name) for name in ("one", "two")}
        chosen = placement.place([prefix], loads)[0]
        sent[chosen] += 1
        running.append(chosen)
        if len(running) > 12:
            running.pop(draw.randrange(len(running)))
    assert max(sent.values()) <= 1.5 * min(sent.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_a_config_s_numbers_fit_the_service_s(config: Path) -> None:
    assert faults(yaml.safe_load(config.read_text())) == []


def faults(config: dict[str, Any]) -> list[str]:
    """What does not fit in a Serve config."""
    (ours,) = (it for it in config["applications"] if it["name"] == "twophase")
    (replica,) = ours["deployments"]
    given = ours["runtime_env"]["env_vars"]
    settings = Settings(host=given.get("TWOPHASE_HOST", "127.0.0.1"), allow_anonymous=True)
    scaling = replica["autoscaling_config"]
    grace_s, at_once = replica["graceful_shutdown_timeout_s"], replica["max_ongoing_requests"]
    needed_s = settings.drain_s + CLOSING_S + ENGINE_END_S + replica["graceful_shutdown_wait_loop_s"]
    paths = [it["import_path"] for it in config["applications"]]
    router = replica["request_router_config"]["request_router_class"]
    relations = {
        "a drain is cut": grace_s > needed_s,
        "it shrinks faster than it drains": scaling["downscale_delay_s"] > grace_s,
        "Serve holds back what the service would refuse": at_once > 5 * MOST_SEQUENCES,
        "it never grows": scaling["target_ongoing_requests"] < at_once,
        "none or too few": 1 <= scaling["min_replicas"] <= scaling["max_replicas"],
        "open to others without intent": settings.host == config["http_options"]["host"],
        "no affinity": router == "deploy.ray.router:PrefixAffinityRouter",
        "targets are not told": "deploy.ray.targets:application" in paths,
    }
    return [name for name, holds in relations.items() if not holds]


def test_a_config_whose_numbers_do_not_fit_is_noticed() -> None:
    config = yaml.safe_load((FOLDER / "many-nodes.yaml").read_text())
    (replica,) = config["applications"][1]["deployments"]
    replica["graceful_shutdown_timeout_s"] = 30
    replica["max_ongoing_requests"] = 100
    del config["applications"][1]["runtime_env"]["env_vars"]["TWOPHASE_HOST"]
    assert faults(config) == [
        "a drain is cut",
        "Serve holds back what the service would refuse",
        "open to others without intent",
    ]


def test_ray_is_started_with_what_stands_in_the_proxy() -> None:
    said = (FOLDER / "env.sh").read_text()
    module, _, function = said.split(f"{CALLBACK}=")[1].split()[0].rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_prometheus_is_set_up_as_everywhere_but_for_where_it_looks() -> None:
    ours = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    usual = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())
    assert ours["global"] == usual["global"]
    assert [(FOLDER / name).resolve() for name in ours["rule_files"]] == [
        (ROOT / "grafana" / name).resolve() for name in usual["rule_files"]
    ]
    (job,), (its,) = ours["scrape_configs"], usual["scrape_configs"]
    assert job["job_name"] == its["job_name"]
    port = yaml.safe_load((FOLDER / "one-node.yaml").read_text())["http_options"]["port"]
    assert job["http_sd_configs"][0]["url"] == f"http://127.0.0.1:{port}/targets/replicas"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_a_replica_is_given_as_much_as_on_kubernetes(config: Path) -> None:
    scaler = yaml.safe_load((ROOT / SCALER).read_text())
    load = next(it for it in scaler["spec"]["triggers"] if it["name"] == "load")
    (replica,) = yaml.safe_load(config.read_text())["applications"][1]["deployments"]
    assert str(replica["autoscaling_config"]["target_ongoing_requests"]) == load["metadata"]["threshold"]
