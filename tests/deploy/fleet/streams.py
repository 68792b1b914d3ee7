"""Whether an answer comes while it is made, seen by a caller."""

from __future__ import annotations

import time

import httpx

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "stream": True}


def first_piece_came_after(url: str) -> float:
    """The share of an answer's whole time that was gone when its first text came."""
    began_s = time.monotonic()
    came_s, last = [], ""
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**HELLO, "max_tokens": 400}, timeout=60
    ) as response:
        assert len(response.headers.get_list("x-request-id")) == 1
        for line in response.iter_lines():
            if line.startswith("data: "):
                came_s.append(time.monotonic() - began_s)
                last = line
    assert last == "data: [DONE]"
    return came_s[0] / came_s[-1]
