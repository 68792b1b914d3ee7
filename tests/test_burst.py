"""Many more requests than can be served: the surplus is told at once, the others are served in turn."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import running, until

CHAT = "/v1/chat/completions"
RUNNING, WAITING = 4, 8


def test_of_three_hundred_at_once_as_many_as_fit_are_served_and_the_others_told_when_to_come_back(
    renderer: Renderer,
) -> None:
    engine = ScriptedEngine()
    for _ in range(RUNNING + WAITING):
        engine.script("one ", 1.5, "two")
    settings = Settings(max_running=RUNNING, max_waiting=WAITING, slo_ttft_ms=600_000)
    limits = httpx.Limits(max_connections=None)
    with running(settings, engine, renderer) as server, server.client(limits=limits) as client:
        with ThreadPoolExecutor(100) as pool:
            asked = [pool.submit(client.post, CHAT, json=body(stream=at % 2 == 0)) for at in range(300)]
            answers = [one.result() for one in asked]
        until(lambda: server.life.in_flight == 0 and server.parts.admission.held == 0)
        assert server.parts.admission.waiting == 0 and server.parts.admission.reserved_tokens == 0
        assert client.post(CHAT, json=body()).status_code == 200
    counts = Counter(answer.status_code for answer in answers)
    assert counts.keys() == {200, 429} and counts[200] >= RUNNING + WAITING
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["error"]["code"] == "overloaded"
            assert answer.headers["retry-after"].isdigit() and int(answer.headers["retry-after"]) >= 1
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")


def test_so_many_answers_to_one_request_take_so_many_slots(renderer: Renderer) -> None:
    engine = ScriptedEngine()
    engine.script("one ", 30.0, "two")
    settings = Settings(max_running=RUNNING, max_waiting=WAITING, slo_ttft_ms=600_000)
    with running(settings, engine, renderer) as server, server.client() as client:
        with (
            client.stream("POST", CHAT, json=body(n=RUNNING, stream=True)) as response,
            ThreadPoolExecutor(1) as pool,
        ):
            lines = response.iter_lines()
            next(lines)
            assert f"twophase_slots_held {RUNNING}.0\n" in client.get("/metrics").text
            other = pool.submit(client.post, CHAT, json=body())
            until(lambda: server.parts.admission.waiting == 1)
            assert len(engine.started) == 1
            response.close()
            assert other.result().status_code == 200
        until(lambda: server.parts.admission.held == 0)
