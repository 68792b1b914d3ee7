"""Counts that several replicas may share: in a Redis when one is named, else in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import ConfigurationError, StorageError

from service.errors import StartError

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 0.25  # a request waits no longer for the shared store
TRY_AGAIN_S = 5.0
SHARDS = 64  # a store in memory looks at all its keys whenever one changes: several small ones see fewer

Result = TypeVar("Result")


class Counts:
    """Named counters that are forgotten after a while.

    While the shared store does not answer, each replica counts by itself: a quota that is too
    generous for some minutes harms less than a service that refuses everybody.
    """

    def __init__(self, url: str = "memory://", now: Callable[[], float] = time.monotonic) -> None:
        """Raises StartError when there is no such kind of store. The URL may hold a password: never told."""
        self._now = now
        self._own = [MemoryStorage() for _ in range(SHARDS)]
        self._shared = _shared_store(url)
        self._alone_until = 0.0

    async def get(self, key: str) -> int:
        """The count, 0 where there is none."""
        return await self._ask(key, lambda store: store.get(key))

    async def add(self, key: str, amount: int, keep_s: int) -> int:
        """Add to the count, which is kept for `keep_s` from its first use; returns the new one."""
        return await self._ask(key, lambda store: store.incr(key, keep_s, amount))

    async def aclose(self) -> None:
        """Leave the shared store."""
        if self._shared is not None:
            await self._shared.bridge.get_connection().aclose()  # type: ignore[attr-defined]

    async def _ask(
        self, key: str, question: Callable[[MemoryStorage | RedisStorage], Awaitable[Result]]
    ) -> Result:
        own = self._own[hash(key) % SHARDS]
        if self._shared is None or self._now() < self._alone_until:
            return await question(own)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await question(self._shared)
        except (StorageError, TimeoutError, OSError) as exc:
            self._alone_until = self._now() + TRY_AGAIN_S
            log.warning(
                "the quota store does not answer (%s); this process counts alone for %g s",
                type(exc).__name__,
                TRY_AGAIN_S,
            )
            return await question(own)


def _shared_store(url: str) -> RedisStorage | None:
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return None
    if scheme not in ("redis", "rediss"):
        raise StartError("the quota store must be memory://, redis://HOST:PORT/DB or rediss://…")
    try:
        return RedisStorage(f"async+{url}", wrap_exceptions=True, implementation="redispy")
    except ConfigurationError:
        raise StartError("quotas in Redis need the Python package redis; install twophase[redis]") from None
    except ValueError:
        raise StartError("the quota store's address is no valid Redis URL") from None
