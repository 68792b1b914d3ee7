"""Whose request it is, before anything else is looked at. What is not named here as open needs a key."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from service.admission.tenants import Tenants
from service.errors import Unauthenticated
from service.web.playground import PAGE_PATHS
from service.web.refusal import render

log = logging.getLogger(__name__)

PROBES = frozenset(("/livez", "/readyz", "/health"))
METRICS = "/metrics"


class Authenticate:
    """Puts the tenant into the request's state, or refuses. Open paths are compared as they are spelled.

    A key comes as a bearer's, or in `x-api-key`, as Anthropic's clients send it.
    """

    def __init__(self, app: ASGIApp, tenants: Tenants, *, public_metrics: bool) -> None:
        self._app = app
        self._tenants = tenants
        self._open = PROBES | PAGE_PATHS | ({METRICS} if public_metrics else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            return await self._app(scope, receive, send)
        keys = [value for name, value in scope["headers"] if name == b"authorization"]
        keys += [b"Bearer " + value for name, value in scope["headers"] if name == b"x-api-key"]
        try:
            scope["state"]["tenant"] = self._tenants.identify(keys)
        except Unauthenticated as exc:
            log.info("refused for want of a key: %s", (scope["client"] or ("no address",))[0])
            return await render(exc, scope["path"])(scope, receive, send)
        await self._app(scope, receive, send)
