"""What tenants may use, and what they are told."""

from __future__ import annotations

import asyncio
import math

import pytest

from service.admission.counts import Counts
from service.admission.quotas import Quotas
from service.admission.tenant import Quota, Tenant
from service.errors import RateLimited, StartError
from tests.admission.test_minute import Wall


def tenant(name: str = "acme", **limits: int) -> Tenant:
    return Tenant(name, cache_group=name, quota=Quota(**limits))


@pytest.fixture
def wall() -> Wall:
    """The clock of the quotas."""
    return Wall()


@pytest.fixture
def quotas(wall: Wall) -> Quotas:
    """Quotas in memory."""
    return Quotas(Counts(), wall)


async def test_a_tenant_without_limits_is_never_refused_and_told_nothing(quotas: Quotas) -> None:
    visits = [await quotas.enter(tenant()) for _ in range(100)]
    for visit in visits:
        await visit.reserve(10**9, 10**9)
        assert visit.headers() == {}


async def test_requests_at_once_are_those_not_closed(quotas: Quotas) -> None:
    acme = tenant(max_concurrent=2)
    first, second = await quotas.enter(acme), await quotas.enter(acme)
    with pytest.raises(RateLimited, match="2 requests at once") as refused:
        await quotas.enter(acme)
    assert refused.value.retry_after_s == 1
    first.close(10)
    first.close(10)
    third = await quotas.enter(acme)
    with pytest.raises(RateLimited):
        await quotas.enter(acme)
    second.close(ours=True)
    third.close(0)
    assert not quotas.at_once


async def test_one_tenant_s_use_is_not_another_s(quotas: Quotas) -> None:
    limits = {"requests_per_minute": 1, "max_concurrent": 1}
    await quotas.enter(tenant("a", **limits))
    await quotas.enter(tenant("b", **limits))
    for name in ("a", "b"):
        with pytest.raises(RateLimited):
            await quotas.enter(tenant(name, **limits))


async def test_dry_runs_have_the_same_limits_and_take_nothing_from_requests(quotas: Quotas) -> None:
    acme = tenant(requests_per_minute=2, max_concurrent=1)
    asking = await quotas.enter(acme, "dry runs")
    with pytest.raises(RateLimited, match="1 dry runs at once"):
        await quotas.enter(acme, "dry runs")
    made = await quotas.enter(acme)
    asking.close()
    made.close(1)
    (await quotas.enter(acme, "dry runs")).close()
    with pytest.raises(RateLimited, match="2 dry runs a minute"):
        await quotas.enter(acme, "dry runs")
    (await quotas.enter(acme)).close(1)
    with pytest.raises(RateLimited, match="2 requests a minute"):
        await quotas.enter(acme)
    assert not quotas.at_once


async def test_requests_a_minute_are_counted_and_retry_after_is_when_one_is_possible(
    quotas: Quotas, wall: Wall
) -> None:
    acme = tenant(requests_per_minute=3)
    wall.now += 10
    for _ in range(3):
        (await quotas.enter(acme)).close(1)
    with pytest.raises(RateLimited, match="3 requests a minute") as refused:
        await quotas.enter(acme)
    wait = refused.value.retry_after_s
    assert isinstance(wait, int)
    assert wait == 50 + 20
    assert refused.value.headers["retry-after"] == "70"
    wall.now += wait - 1.5
    with pytest.raises(RateLimited):
        await quotas.enter(acme)
    wall.now += 1.5
    await quotas.enter(acme)


async def test_a_refused_request_counts_for_nothing(quotas: Quotas) -> None:
    acme = tenant(requests_per_minute=2, tokens_per_minute=100, max_concurrent=5)
    visit = await quotas.enter(acme)
    await visit.reserve(30, 30)
    with pytest.raises(RateLimited):
        other = await quotas.enter(acme)
        try:
            await other.reserve(30, 30)
        finally:
            other.close(ours=True)
    await quotas.settled()
    standing = await quotas.standing(acme)
    assert standing["x-ratelimit-remaining-requests"] == "1"
    assert standing["x-ratelimit-remaining-tokens"] == "40"
    assert quotas.at_once == {("acme", "requests"): 1}


async def test_what_was_reserved_is_settled_to_what_was_used(quotas: Quotas) -> None:
    acme = tenant(tokens_per_minute=1000)
    visit = await quotas.enter(acme)
    await visit.reserve(100, 500)
    assert visit.headers()["x-ratelimit-remaining-tokens"] == "400"
    visit.close(150)
    visit.close(150)
    await quotas.settled()
    assert (await quotas.standing(acme))["x-ratelimit-remaining-tokens"] == "850"


async def test_use_beyond_the_reservation_is_counted_too(quotas: Quotas) -> None:
    acme = tenant(tokens_per_minute=100)
    visit = await quotas.enter(acme)
    await visit.reserve(40, 8000)
    visit.close(240)
    await quotas.settled()
    assert (await quotas.standing(acme))["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(RateLimited) as refused:
        await (await quotas.enter(acme)).reserve(1, 1)
    assert refused.value.retry_after_s == 60 + math.ceil(60 * (1 - 98 / 240))


async def test_an_output_that_never_fits_beside_its_prompt_does_not_shut_the_prompt_out(
    quotas: Quotas,
) -> None:
    acme = tenant(tokens_per_minute=1000)
    visit = await quotas.enter(acme)
    await visit.reserve(900, 8000)
    visit.close(950)


async def test_a_prompt_larger_than_the_limit_is_told_so(quotas: Quotas) -> None:
    visit = await quotas.enter(tenant(tokens_per_minute=1000))
    with pytest.raises(RateLimited, match="the prompt alone has 1000") as refused:
        await visit.reserve(1000, 1)
    assert refused.value.retry_after_s == 60


async def test_headers_are_openai_s(quotas: Quotas, wall: Wall) -> None:
    acme = tenant(requests_per_minute=60, tokens_per_minute=5000)
    assert (await quotas.standing(acme))["x-ratelimit-reset-requests"] == "0ms"
    wall.now += 30
    visit = await quotas.enter(acme)
    await visit.reserve(10, 90)
    assert visit.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m30s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4900",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    wall.now += 60
    assert (await quotas.standing(acme))["x-ratelimit-reset-tokens"] == "30s"


async def test_many_at_once_take_no_more_than_the_limit(quotas: Quotas) -> None:
    acme = tenant(requests_per_minute=20, tokens_per_minute=1500)

    async def ask() -> bool:
        try:
            visit = await quotas.enter(acme)
        except RateLimited:
            return False
        try:
            await visit.reserve(50, 50)
            return True
        except RateLimited:
            visit.close(ours=True)
            return False

    served = await asyncio.gather(*(ask() for _ in range(200)))
    await quotas.settled()
    assert sum(served) == 15
    assert (await quotas.standing(acme))["x-ratelimit-remaining-requests"] == "5"


@pytest.mark.parametrize("url", ["", "memcached://host", "http://host:1", "localhost:6379"])
def test_an_unknown_store_is_refused_without_repeating_its_address(url: str) -> None:
    with pytest.raises(StartError, match="memory://, redis://") as refused:
        Counts(url)
    assert not url or url not in str(refused.value)
