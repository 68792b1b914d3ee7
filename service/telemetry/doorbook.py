"""Every HTTP request by route and class of status: probes, dry runs and refusals at the door included."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from service.telemetry.families import counters

OTHER_ROUTES = "other"
CLASSES = ("2xx", "3xx", "4xx", "5xx")


class Doorbook:
    """Counts requests as their response begins. Labels are closed: a path that is none of `routes` is other.

    A route that ends in a parameter, as /v1/models/{name:path}, is known by what is before it.
    """

    def __init__(self, registry: CollectorRegistry, routes: Iterable[str] = ()) -> None:
        named = {route.replace(":path}", "}") for route in routes}
        self._plain = {route for route in named if "{" not in route}
        self._open = [(route.partition("{")[0], route) for route in named - self._plain]
        self._count = counters(
            registry,
            "twophase_http_requests_total",
            "Requests on any route, by route and class of status; what is no route of ours is other",
            {"route": (*sorted(named), OTHER_ROUTES), "status_class": CLASSES},
        )

    def observe(self, path: str, status: int) -> None:
        """Count one request."""
        self._count[self._route(path), f"{status // 100}xx"].inc()

    def _route(self, path: str) -> str:
        if path in self._plain:
            return path
        return next((route for start, route in self._open if path.startswith(start)), OTHER_ROUTES)
