"""Responses that their callers want kept: in memory, each tenant's apart, the oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import orjson


class Kept(NamedTuple):
    """A response as it was sent, and the messages that a next one begins with; both JSON."""

    body: bytes
    messages: bytes

    @property
    def size_bytes(self) -> int:
        """The memory it takes."""
        return len(self.body) + len(self.messages)


class Store:
    """At most `limit_bytes` for each tenant; tenants come from the operator's file, so that is a bound."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: defaultdict[str, OrderedDict[str, Kept]] = defaultdict(OrderedDict)
        self._used_bytes: defaultdict[str, int] = defaultdict(int)

    def keep(self, tenant: str, body: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a response under its id. One that is larger than the limit is not kept."""
        kept = Kept(orjson.dumps(body), orjson.dumps(messages))
        if kept.size_bytes > self.limit_bytes:
            return
        self._kept[tenant][body["id"]] = kept
        self._used_bytes[tenant] += kept.size_bytes
        while self._used_bytes[tenant] > self.limit_bytes:
            self.drop(tenant, next(iter(self._kept[tenant])))

    def get(self, tenant: str, response_id: str) -> Kept | None:
        """A tenant's response; None where there is none, or no longer."""
        return self._kept[tenant].get(response_id)

    def drop(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        kept = self._kept[tenant].pop(response_id, None)
        if kept is not None:
            self._used_bytes[tenant] -= kept.size_bytes
        return kept is not None
