"""Whether an answer comes while it is made, seen by a caller."""

from __future__ import annotations

import time

import httpx

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "stream": True}


def came_in_the_first_half(url: str) -> float:
    """The share of an answer's pieces that were there when half of its time was over."""
    came_s = []
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**HELLO, "max_tokens": 400}, timeout=60
    ) as response:
        assert len(response.headers.get_list("x-request-id")) == 1
        last = ""
        for line in response.iter_lines():
            if line.startswith("data: "):
                came_s.append(time.monotonic())
                last = line
    assert last == "data: [DONE]"
    half_s = (came_s[0] + came_s[-1]) / 2
    return sum(moment_s < half_s for moment_s in came_s) / len(came_s)
