"""Clients that leave in the worst moments, and answers that have to repeat: on the real engine."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.real.conftest import Served
from tests.small.conftest import KEYS, WINDOW
from tests.small.neighbour import CHAT, unharmed

pytestmark = pytest.mark.engine


def leave_after(served: Served, raw: bytes, sent: int, pause_s: float) -> None:
    """Send the first `sent` bytes of a request, wait, and be gone."""
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as wire:
        wire.sendall(raw[:sent])
        wire.settimeout(pause_s or 0.001)
        with contextlib.suppress(TimeoutError):
            wire.recv(4096)


def test_storms_of_clients_that_leave_in_queue_prefill_or_body_leave_nothing(
    small: Served, web: httpx.Client
) -> None:
    chance = random.Random(7)
    for _ in range(3):
        requests = []
        for at in range(40):
            words = " ".join(str(chance.random()) for _ in range(WINDOW // 40))
            content = json.dumps(
                {
                    "messages": [{"role": "user", "content": words}],
                    "stream": at % 2 == 0,
                    "max_tokens": 200,
                    "ignore_eos": True,
                }
            ).encode()
            head = (
                f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEYS['A']}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            raw = head.encode() + content
            sent = len(raw) if at % 5 else chance.randrange(len(raw))
            requests.append((raw, sent, chance.random() / 10))
        with unharmed(small, web, neighbours=0), ThreadPoolExecutor(40) as pool:
            list(pool.map(lambda request: leave_after(small, *request), requests))


def test_choices_differ_and_a_seed_repeats_them(web: httpx.Client) -> None:
    def texts(**fields: object) -> list[str]:
        body = {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 24, "n": 3}
        choices = web.post(CHAT, json={**body, **fields}).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        return [choice["message"]["content"] for choice in choices]

    seeded = texts(seed=11, temperature=1.2)
    assert len(set(seeded)) > 1 and len(set(texts(temperature=1.2))) > 1
    assert texts(seed=11, temperature=1.2) == seeded
    assert len(set(texts(temperature=0))) == 1
