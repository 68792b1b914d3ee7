"""What each tenant may use: requests and tokens a minute, requests at once.

enter ──► one request counted ──► reserve ──► prompt + reserved output counted ──► close ──► what was used

A request counts from its headers on, whatever its body turns out to be: who sends rubbish is limited too.
Only what is refused for a reason of ours counts for nothing. Dry runs have the same limits and are counted
apart: to ask what a request would cost takes nothing from those that are made.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from service.admission.counts import Counts
from service.admission.minute import Minutes, Usage
from service.admission.tenant import Tenant
from service.errors import RateLimited

Kind = Literal["requests", "dry runs"]


class Quotas:
    """All tenants' use. Requests at once are counted in this process, the rest where `counts` keeps it."""

    def __init__(self, counts: Counts | None = None, now: Callable[[], float] = time.time) -> None:
        self._counts = counts or Counts()
        self.minutes = Minutes(self._counts, now)
        self.at_once: Counter[tuple[str, Kind]] = Counter()
        self._settling: set[asyncio.Task[None]] = set()

    async def enter(self, tenant: Tenant, kind: Kind = "requests") -> Visit:
        """Count one request in. Whoever holds the visit closes it.

        Raises:
            RateLimited: the tenant has as many as it may; nothing has been counted.
        """
        limit = tenant.quota.max_concurrent
        if limit is not None and self.at_once[tenant.name, kind] >= limit:
            raise RateLimited(
                f"Your API key may have {limit} {kind} at once and has them; wait for one to end.",
                retry_after_s=1,
            )
        visit = Visit(self, tenant, kind)
        try:
            await visit.count_request()
        except BaseException:
            visit.close(ours=True)
            raise
        return visit

    async def standing(self, tenant: Tenant) -> dict[str, str]:
        """The `x-ratelimit-…` headers of a tenant, for responses without a visit."""
        quota, usage = tenant.quota, self.minutes.usage
        requests, tokens = quota.requests_per_minute, quota.tokens_per_minute
        return _headers(
            None if requests is None else await usage(f"{tenant.name}/requests", requests),
            None if tokens is None else await usage(f"{tenant.name}/tokens", tokens),
        )

    def settle(self, name: str, minute: int, amount: int) -> None:
        """Correct a count without making anybody wait for it."""
        if amount:
            task = asyncio.ensure_future(self.minutes.change(name, minute, amount))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def settled(self) -> None:
        """Returns when all that closed requests used is counted."""
        if self._settling:
            await asyncio.wait(self._settling)

    async def aclose(self) -> None:
        """Finish what is being settled and leave the store."""
        await self.settled()
        await self._counts.aclose()


class Visit:
    """One request of a tenant, from its entry to its close."""

    def __init__(self, quotas: Quotas, tenant: Tenant, kind: Kind = "requests") -> None:
        self._quotas = quotas
        self._tenant = tenant
        self._kind: Kind = kind
        self._requests_name = f"{tenant.name}/{kind}"
        self._tokens_name = f"{tenant.name}/tokens"
        self._requests: Usage | None = None
        self._tokens: Usage | None = None
        self._counted = False
        self._reserved = 0
        self._open = True
        quotas.at_once[tenant.name, kind] += 1

    async def count_request(self) -> None:
        """Raises RateLimited when the tenant has no request left in this minute."""
        limit = self._tenant.quota.requests_per_minute
        if limit is None:
            return
        self._requests, self._counted = await self._quotas.minutes.take(self._requests_name, 1, limit)
        if not self._counted:
            wait = _seconds(self._requests.wait_s(1))
            raise RateLimited(
                f"Your API key may make {limit} {self._kind} a minute; the next one in {wait} s.",
                retry_after_s=wait,
            )

    async def reserve(self, prompt_tokens: int, output_tokens: int) -> None:
        """Count a prompt and the most that its answers may have.

        An output that would never fit beside the prompt is reserved as far as it does: an upper
        bound must not shut out what will mostly be a short answer.

        Raises:
            RateLimited: so many tokens are not left; none have been counted.
        """
        limit = self._tenant.quota.tokens_per_minute
        if limit is None:
            return
        if prompt_tokens >= limit:
            raise RateLimited(
                f"Your API key may use {limit} tokens a minute; the prompt alone has {prompt_tokens}. "
                "Send less.",
                retry_after_s=60,
            )
        amount = min(prompt_tokens + output_tokens, limit)
        self._tokens, taken = await self._quotas.minutes.take(self._tokens_name, amount, limit)
        if not taken:
            wait = _seconds(self._tokens.wait_s(amount))
            raise RateLimited(
                f"Your API key may use {limit} tokens a minute and has {self._tokens.remaining} left; "
                f"this request needs up to {amount}. Try again in {wait} s, or ask for less.",
                retry_after_s=wait,
            )
        if self._open:
            self._reserved = amount
        else:  # closed while the store was asked
            self._quotas.settle(self._tokens_name, self._tokens.minute, -amount)

    def headers(self) -> dict[str, str]:
        """OpenAI's `x-ratelimit-…` headers, for the limits the tenant has."""
        return _headers(self._requests, self._tokens)

    def close(self, used_tokens: int = 0, *, ours: bool = False) -> None:
        """The request is over. `ours`: refused for a reason of ours. Never waits; the first call counts."""
        if not self._open:
            return
        self._open = False
        self._leave()
        if self._tokens is not None and self._reserved:
            self._quotas.settle(self._tokens_name, self._tokens.minute, used_tokens - self._reserved)
        if self._requests is not None and self._counted and ours:
            self._quotas.settle(self._requests_name, self._requests.minute, -1)

    def _leave(self) -> None:
        at_once, place = self._quotas.at_once, (self._tenant.name, self._kind)
        at_once[place] -= 1
        if not at_once[place]:
            del at_once[place]


def _headers(requests: Usage | None, tokens: Usage | None) -> dict[str, str]:
    return {
        f"x-ratelimit-{what}-{kind}": value
        for kind, usage in (("requests", requests), ("tokens", tokens))
        if usage is not None
        for what, value in (
            ("limit", str(usage.limit)),
            ("remaining", str(usage.remaining)),
            ("reset", _duration(usage.reset_s)),
        )
    }


def _seconds(wait_s: float) -> int:
    return max(1, math.ceil(wait_s))


def _duration(seconds: float) -> str:
    """As OpenAI writes it: `6m0s`, `1.5s`, `20ms`."""
    if seconds >= 60:
        whole = math.ceil(seconds)
        return f"{whole // 60}m{whole % 60}s"
    return f"{seconds:.3g}s" if seconds >= 1 else f"{math.ceil(seconds * 1e3)}ms"
