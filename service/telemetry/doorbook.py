"""Every HTTP request by route and class of status: probes, dry runs and refusals at the door included."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from service.telemetry.families import counters

OTHER_ROUTES = "other"
PARAMETER = re.compile(r"\{[^}]*\}")
CLASSES = ("2xx", "3xx", "4xx", "5xx")


class Doorbook:
    """Counts requests as their response begins. Labels are closed: a path that is none of `routes` is other.

    A parameter in a route, as in /v1/responses/{id}/cancel, stands for one part of a path, and one that is
    declared as a path for all that follows.
    """

    def __init__(self, registry: CollectorRegistry, routes: Iterable[str] = ()) -> None:
        named = {route.replace(":path}", "}"): route for route in routes}
        self._plain = {name for name in named if "{" not in name}
        self._open = [(_pattern(route), name) for name, route in named.items() if name not in self._plain]
        self._count = counters(
            registry,
            "twophase_http_requests_total",
            "Requests on any route, by route and class of status; what is no route of ours is other",
            {"route": (*sorted(named), OTHER_ROUTES), "status_class": CLASSES},
        )

    def observe(self, path: str, status: int) -> None:
        """Count one request."""
        self._count[self._route(path), f"{status // 100}xx"].inc()

    def refused(self, status: int) -> None:
        """Count what was refused before it had become a request with a path."""
        self._count[OTHER_ROUTES, f"{status // 100}xx"].inc()

    def _route(self, path: str) -> str:
        if path in self._plain:
            return path
        return next((name for pattern, name in self._open if pattern.fullmatch(path)), OTHER_ROUTES)


def _pattern(route: str) -> re.Pattern[str]:
    """What the paths of a route look like."""
    fixed = [re.escape(part) for part in PARAMETER.split(route)]
    parameters = [".*" if ":path" in found else "[^/]*" for found in PARAMETER.findall(route)]
    return re.compile("".join(map("".join, zip(fixed, [*parameters, ""], strict=True))), re.DOTALL)
