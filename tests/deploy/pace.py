"""How the times of a deployment must lie to each other, and which of them do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.settings import Settings
from service.web.server import CLOSING_S
from tests.deploy.manifests import Manifest, container, only, variables

ENGINE_END_S = 5  # the engine's core may take as long before it is killed
NEWS_S = 5  # for the end of a replica to reach every balancer


def faults(manifests: list[Manifest]) -> list[str]:
    """A sentence for each relation that does not hold; none for a deployment that can be run."""
    return [sentence for holds, sentence in _relations(manifests) if not holds]


def _relations(manifests: list[Manifest]) -> Iterator[tuple[bool, str]]:
    pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
    ours, given = container(manifests), variables(manifests)
    settings = Settings(drain_s=float(given["TWOPHASE_DRAIN_S"]), hang_s=float(given["TWOPHASE_HANG_S"]))
    pause_s = ours["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed_s = pause_s + settings.drain_s + CLOSING_S + ENGINE_END_S
    start, ready, live = (ours[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
    limit_s = only(manifests, "Deployment")["spec"]["progressDeadlineSeconds"]
    yield pod["terminationGracePeriodSeconds"] > needed_s, "the grace period is shorter than pause and drain"
    yield pause_s >= NEWS_S, "new requests come to a replica that has begun to drain"
    yield _patience_s(live) > settings.hang_s, "liveness kills before the service has seen that it hangs"
    yield _patience_s(ready) < settings.hang_s / 2, "readiness is slower than what it should tell of"
    yield _patience_s(start) >= 600, "a first start fetches a model, which takes longer"
    yield _patience_s(start) < limit_s, "a rollout is given up while a replica may still start"
    yield all(probe["timeoutSeconds"] <= probe["periodSeconds"] for probe in (start, ready, live)), "overlap"


def _patience_s(probe: dict[str, Any]) -> float:
    return float(probe["periodSeconds"] * probe["failureThreshold"])
