"""Anything at all, at the real engine: it lives, and who streams beside it notices nothing."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from tests.hostile import bodies
from tests.real.conftest import Served
from tests.small.neighbour import CHAT, unharmed

pytestmark = pytest.mark.engine


def test_no_body_ends_the_engine_or_touches_the_stream_beside_it(small: Served, web: httpx.Client) -> None:
    @examples(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
    @given(body=bodies())
    def anything(body: dict[str, object]) -> None:
        raw = json.dumps(body).encode("utf-8", "surrogatepass")
        response = web.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400, 403, 404, 429), response.text
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    with unharmed(small, web):
        anything()
