"""Who shares the engine with a test: streams beside it, and what has to be as before when it is over."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.real.conftest import Served
from tests.serving import until
from tests.small.conftest import bearer

CHAT = "/v1/chat/completions"
STREAM = {
    "messages": [{"role": "user", "content": "Name three rivers."}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 200,
    "ignore_eos": True,
    "temperature": 0,
}
LOAD = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "twophase_slots_held",
    "twophase_kv_reserved_tokens",
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


@contextmanager
def unharmed(small: Served, web: httpx.Client, *, neighbour: bool = True) -> Iterator[None]:
    """Whatever happens in the block: a stream beside it is whole and the same, and afterwards the processes
    are those there were, the service is ready, serves, and holds nothing."""
    family = {process.pid for process in small.family}
    canary = Canary(small.url)
    if neighbour:
        with canary.singing():
            yield
        assert canary.broken == [] and len(set(canary.texts)) == 1, "its text is always the same"
    else:
        yield
    answer = web.post(CHAT, json={"messages": STREAM["messages"], "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    until(lambda: load(web) == dict.fromkeys(LOAD, 0.0), within_s=20)
    assert {process.pid for process in small.family} == family
    assert web.get("/readyz").status_code == 200


def load(web: httpx.Client) -> dict[str, float]:
    """What the engine has to do and what we think it has."""
    page = web.get("/metrics").text
    lines = re.findall(r"^(\w[\w:]*)(?:\{.*\})? (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in lines if name in LOAD}
