"""Anything at all, at the real engine: it lives, and who streams beside it notices nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from tests.hostile import bodies
from tests.real.conftest import Served
from tests.serving import until
from tests.small.conftest import bearer

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
STREAM = {
    "messages": [{"role": "user", "content": "Name three rivers."}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 200,
    "ignore_eos": True,
    "temperature": 0,
}


class Canary:
    """Streams the same answer again and again, and keeps how each stream ended."""

    def __init__(self, url: str) -> None:
        self.texts: list[str] = []
        self.broken: list[str] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sing)

    @contextmanager
    def singing(self) -> Iterator[None]:
        """Stream for as long as the block lasts."""
        self._thread.start()
        try:
            until(lambda: self.texts or self.broken, within_s=30)
            yield
        finally:
            self._over.set()
            self._thread.join(60)

    def _sing(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60, headers=bearer("friend")) as client:
            while not self._over.is_set():
                response = client.post(CHAT, json=STREAM)
                if response.status_code != 200 or not response.text.endswith("data: [DONE]\n\n"):
                    self.broken.append(response.text[-300:])
                    return
                lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
                chunks = [json.loads(line) for line in lines]
                assert chunks[-1]["usage"]["completion_tokens"] == STREAM["max_tokens"]
                self.texts.append(
                    "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
                )


def test_no_body_ends_the_engine_or_touches_the_stream_beside_it(small: Served, web: httpx.Client) -> None:
    family = {process.pid for process in small.family}
    canary = Canary(small.url)

    @examples(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
    @given(body=bodies())
    def anything(body: dict[str, object]) -> None:
        raw = json.dumps(body).encode("utf-8", "surrogatepass")
        response = web.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400, 403, 404, 429), response.text
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    with canary.singing():
        anything()
    assert canary.broken == [] and len(set(canary.texts)) == 1, "its text is always the same"
    assert {process.pid for process in small.family} == family
    assert web.get("/readyz").status_code == 200
