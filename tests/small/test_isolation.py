"""No tenant reads another's prefix cache, on the real engine: hits inside a group, none across."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from service.admission.salt import cache_salt
from tests.real.conftest import Served
from tests.serving import until
from tests.small.conftest import CACHE_SECRET, GROUPS, KEYS, bearer
from tests.telemetry.collector import GrpcCollector

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"


def cached(web: httpx.Client, tenant: str, text: str, **fields: Any) -> int:
    """How many tokens of a prompt this tenant found in the cache."""
    request = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}
    response = web.post(CHAT, json=request, headers=bearer(tenant))
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture
def prompt() -> str:
    """A text of several blocks that nobody has sent before."""
    return f"{time.monotonic_ns()} " + "secret " * 500


def test_a_tenant_finds_its_own_prompt_again(web: httpx.Client, prompt: str) -> None:
    assert cached(web, "a", prompt) == 0
    assert cached(web, "a", prompt) >= 384


def test_another_tenant_does_not_find_it_whatever_its_body_says(web: httpx.Client, prompt: str) -> None:
    cached(web, "a", prompt)
    assert cached(web, "partner", prompt) == 0
    for number, salt in enumerate(["a", "tenant-a", "A", ""]):
        other = f"{number} {prompt}"
        cached(web, "a", other)
        assert cached(web, "friend", other, cache_salt=salt) == 0


def test_names_that_differ_by_case_are_two_groups(web: httpx.Client, prompt: str) -> None:
    cached(web, "a", prompt)
    assert cached(web, "A", prompt) == 0


def test_a_group_shares_and_strangers_do_not(web: httpx.Client, prompt: str) -> None:
    assert cached(web, "partner", prompt) == 0
    assert cached(web, "friend", prompt) >= 384
    assert cached(web, "a", prompt) == 0


def test_the_salt_is_told_to_nobody(
    small: Served, web: httpx.Client, collector: GrpcCollector, prompt: str
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    answers = [web.post(CHAT, json={**body, "stream": stream}) for stream in (False, True)]
    answers.append(web.post("/v1/chat/explain", json=body))
    until(lambda: sum(span.name == f"POST {CHAT}" for span in collector.spans) >= 2)
    shown = "".join(answer.text + str(answer.headers) for answer in answers) + web.get("/metrics").text
    shown += "".join(small.lines) + "".join(str(span) for span in collector.spans)
    salts = [cache_salt(CACHE_SECRET.encode(), GROUPS.get(name, name)) for name in KEYS]
    assert not [told for told in (CACHE_SECRET, *salts) if told in shown]
