"""Replicas that count together in a real Redis, and each by itself when there is none."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.admission.counts import Counts
from service.admission.quotas import Quotas
from service.admission.tenant import Quota, Tenant
from service.errors import RateLimited, StartError
from tests.admission.redis_server import redis_server
from tests.admission.test_minute import Wall

ACME = Tenant("acme", cache_group="acme", quota=Quota(10, 1000, 2))


@asynccontextmanager
async def replicas(url: str, count: int) -> AsyncIterator[list[Quotas]]:
    """Replicas of the service with one store and one wall clock."""
    wall = Wall()
    made = [Quotas(Counts(url), wall) for _ in range(count)]
    try:
        yield made
    finally:
        for quotas in made:
            await quotas.aclose()


async def served(quotas: Quotas, tokens: int) -> bool:
    """Whether a request of so many tokens is let in; it ends at once, and has used half of them."""
    try:
        visit = await quotas.enter(ACME)
    except RateLimited:
        return False
    try:
        await visit.reserve(tokens // 2, tokens // 2)
    except RateLimited:
        visit.close(ours=True)
        return False
    visit.close(tokens // 2)
    return True


async def test_replicas_share_what_a_tenant_may_use(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        async with replicas(url, 2) as (one, two):
            assert [await served(quotas, 10) for quotas in (one, two) * 6] == [True] * 10 + [False] * 2


async def test_replicas_see_what_another_has_settled(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        async with replicas(url, 2) as (one, two):
            visit = await one.enter(ACME)
            await visit.reserve(100, 800)
            assert not await served(two, 200)
            visit.close(150)
            await one.settled()
            standing = await two.standing(ACME)
            assert standing["x-ratelimit-remaining-tokens"] == "850"
            assert standing["x-ratelimit-remaining-requests"] == "9"
            assert await served(two, 200)


async def test_replicas_at_the_same_moment_let_in_no_more_than_the_limit(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        async with replicas(url, 3) as made:
            unbound = Tenant("acme", cache_group="acme", quota=Quota(20, None, None))

            async def ask(quotas: Quotas) -> bool:
                try:
                    await quotas.enter(unbound)
                    return True
                except RateLimited:
                    return False

            asked = await asyncio.gather(*(ask(quotas) for quotas in made * 20))
            assert 15 <= sum(asked) <= 20  # two that meet at the last place may both be refused


async def refused_port() -> str:
    """A URL where nothing answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"redis://:secret-word@127.0.0.1:{free.getsockname()[1]}/0"


@pytest.fixture
def needs_client(tmp_path: Path) -> None:
    """Skips where the client is missing."""
    with redis_server(tmp_path):
        pass


@pytest.mark.usefixtures("needs_client")
async def test_without_the_store_each_replica_counts_alone_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = await refused_port()
    with caplog.at_level(logging.WARNING):
        async with replicas(url, 1) as (alone,):
            assert [await served(alone, 10) for _ in range(12)] == [True] * 10 + [False] * 2
    assert caplog.text.count("does not answer") == 1
    assert "secret-word" not in caplog.text


@pytest.mark.usefixtures("needs_client")
async def test_a_store_that_accepts_and_never_answers_delays_a_request_only_a_moment() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with replicas(f"redis://127.0.0.1:{port}/0", 1) as (quotas,):
            async with asyncio.timeout(5):
                assert await served(quotas, 10)
    finally:
        server.close()


@pytest.mark.parametrize("url", ["redis://host:port:x", "redis://h:notaport/0", "redis://h:1/x?db=y"])
@pytest.mark.usefixtures("needs_client")
def test_an_address_that_is_none_is_refused_at_the_start_and_not_repeated(url: str) -> None:
    with pytest.raises(StartError) as refused:
        Counts(url)
    assert url not in str(refused.value)
