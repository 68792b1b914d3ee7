"""Who shares the engine with a test: streams beside it, and what has to be as before when it is over."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
FAULTS = ("Traceback", "never retrieved", "No response returned", "was never awaited")
LOAD = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "twophase_slots_held",
    "twophase_kv_reserved_tokens",
}


class Canary:
    """Streams the same answer again and again, and keeps how each stream ended and its longest pause."""

    def __init__(self, url: str) -> None:
        self.texts: list[str] = []
        self.broken: list[str] = []
        self.longest_pause_s = 0.0
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
            while not self._over.is_set() and not self.broken:
                with client.stream("POST", CHAT, json=STREAM) as response:
                    self._hear(response.status_code, self._timed(response.iter_lines()))

    def _hear(self, status: int, lines: Iterator[str]) -> None:
        data = [line[6:] for line in lines if line.startswith("data: ")]
        if status != 200 or data[-1:] != ["[DONE]"]:
            self.broken.append(f"{status}: {data[-2:]}")
            return
        chunks = [json.loads(line) for line in data[:-1]]
        assert chunks[-1]["usage"]["completion_tokens"] == STREAM["max_tokens"]
        self.texts.append(
            "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        )

    def _timed(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines; between two of them the longest pause is kept."""
        before_s = time.monotonic()
        for number, line in enumerate(lines):
            now_s = time.monotonic()
            if number:  # the first, with role and text, comes after a wait in the queue
                self.longest_pause_s = max(self.longest_pause_s, now_s - before_s)
            before_s = now_s
            yield line


@contextmanager
def unharmed(small: Served, web: httpx.Client, *, neighbours: int = 1) -> Iterator[list[Canary]]:
    """Whatever happens in the block: streams beside it are whole and the same, and afterwards the processes
    are those there were, the service is ready, serves, holds nothing, and has logged no fault of its own."""
    family, logged = {process.pid for process in small.family}, len(small.lines)
    canaries = [Canary(small.url) for _ in range(neighbours)]
    with ExitStack() as songs:
        for canary in canaries:
            songs.enter_context(canary.singing())
        yield canaries
    assert [canary.broken for canary in canaries] == [[]] * neighbours
    texts = {text for canary in canaries for text in canary.texts}
    assert len(texts) == min(neighbours, 1), "its text is always the same"
    answer = web.post(CHAT, json={"messages": STREAM["messages"], "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    until(lambda: load(web) == dict.fromkeys(LOAD, 0.0), within_s=20)
    assert {process.pid for process in small.family} == family
    assert web.get("/readyz").status_code == 200
    assert not [line for line in small.lines[logged:] if any(fault in line for fault in FAULTS)]


def load(web: httpx.Client) -> dict[str, float]:
    """What the engine has to do and what we think it has."""
    page = web.get("/metrics").text
    lines = re.findall(r"^(\w[\w:]*)(?:\{.*\})? (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in lines if name in LOAD}
