"""Where the time goes, told by the real engine: each verdict provoked once, and the sums right."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.real.conftest import Served
from tests.serving import until
from tests.small.conftest import KEYS
from tests.sse import read

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
END = 2  # the tokenizer's end of a turn
TEXT = re.compile('"content":"[^"]')
RUNNING = "vllm:num_requests_running"
PARTS = ("render_ms", "admission_ms", "queue_ms", "prefill_ms", "decode_ms")


def request(words: int = 5, **fields: object) -> dict[str, object]:
    """A request of about so many tokens that ends only at its length."""
    unique = f"{time.monotonic_ns()} "
    messages = [{"role": "user", "content": unique + "word " * words}]
    return {"messages": messages, "max_tokens": 8, "ignore_eos": True, **fields}


def phases(web: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The phases of a whole answer."""
    response = web.post(CHAT, json=request(**fields))
    assert response.status_code == 200, response.text
    return dict(response.json()["phases"])


def samples(web: httpx.Client) -> dict[tuple[str, ...], float]:
    """Every sample of a scrape, by its name and label values."""
    families = text_string_to_metric_families(web.get("/metrics").text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture(scope="module", autouse=True)
def warm(web: httpx.Client) -> Iterator[None]:
    """What is slow only once is over before anything is measured."""
    phases(web, words=400, max_tokens=50)
    yield


def test_the_parts_of_two_hundred_answers_add_up_to_their_totals(web: httpx.Client) -> None:
    for number in range(200):
        found = phases(web, words=number, max_tokens=1 + number % 30)
        assert all(found[part] >= 0 for part in PARTS), found
        missing = found["total_ms"] - sum(found[part] for part in PARTS)
        assert -1 <= missing <= max(25, 0.02 * found["total_ms"]), found
        assert found["decode_steps"] == number % 30
        assert found["prefill_ms"] > 0


def test_one_token_has_no_decode_step_and_no_pace(web: httpx.Client) -> None:
    found = phases(web, max_tokens=1)
    assert (found["decode_steps"], found["decode_ms"], found["tpot_ms"]) == (0, 0, 0)


def test_cached_and_computed_tokens_are_the_prompt(web: httpx.Client) -> None:
    same = [{"role": "user", "content": "cached " * 600}]
    answers = [web.post(CHAT, json=request(messages=same)).json() for _ in range(2)]
    for answer in answers:
        found = answer["phases"]
        assert found["computed_tokens"] + found["cached_tokens"] == answer["usage"]["prompt_tokens"]
    assert answers[1]["phases"]["cached_tokens"] >= 512


def test_more_requests_than_slots_are_bound_by_the_queue(web: httpx.Client) -> None:
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: phases(web, max_tokens=100), range(40)))
    verdicts = Counter(one["bound_by"] for one in found)
    assert verdicts["queue"] >= 30, verdicts


def test_a_reader_slower_than_the_engine_is_told_apart(small: Served, web: httpx.Client) -> None:
    port = urlsplit(small.url).port
    body = orjson.dumps(
        request(
            n=16,
            max_tokens=200,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,  # makes each chunk long
            top_logprobs=20,
        )
    )
    generated = ("vllm:generation_tokens_total",)

    def made() -> float:
        return sum(value for key, value in samples(web).items() if key[:1] == generated)

    all_of_it = made() + 16 * 200
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", port))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {KEYS['a']}\r\n"
        wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        began = time.monotonic()
        until(lambda: made() >= all_of_it, within_s=120)
        time.sleep(time.monotonic() - began + 2)  # as long again as the engine has taken, and more
        received = bytearray()
        while data := wire.recv(1 << 20):
            received += data
    usage_chunk = next(part for part in received.split(b"\n\n")[::-1] if b'"choices":[]' in part)
    found = orjson.loads(usage_chunk[usage_chunk.index(b"{") :])["phases"]
    assert found["bound_by"] == "client", found


def test_streaming_moves_the_first_byte_and_keeps_the_engines_work(web: httpx.Client) -> None:
    fields: dict[str, Any] = {"words": 300, "max_tokens": 200}
    whole = phases(web, **fields)
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    events = read(web.post(CHAT, json=request(**fields)))
    streamed = events.objects[-1]["phases"]
    assert streamed["ttft_ms"] < streamed["total_ms"] / 2
    assert whole["ttft_ms"] > whole["total_ms"] / 2
    assert streamed["decode_steps"] == whole["decode_steps"] == 199


def test_counts_in_the_metrics_are_those_of_the_answers(web: httpx.Client) -> None:
    before = samples(web)
    usages = [web.post(CHAT, json=request(words=n)).json()["usage"] for n in (3, 30, 300)]
    early = {"stop": ["e", "a"], "ignore_eos": False, "max_tokens": 100}
    at_once = {"allowed_token_ids": [END], "ignore_eos": False}
    kinds: tuple[dict[str, Any], ...] = ({}, early, at_once)
    for fields in kinds:
        asked = request(**fields)
        usages.append(web.post(CHAT, json=asked).json()["usage"])
        streaming = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        usages.append(read(web.post(CHAT, json=streaming)).usage or {})
    output = sum(usage["completion_tokens"] for usage in usages)

    def risen(name: str, *labels: str) -> float:
        def total(of: dict[tuple[str, ...], float]) -> float:
            return sum(value for key, value in of.items() if key[0] == name and set(labels) <= set(key))

        return total(samples(web)) - total(before)

    until(lambda: risen("vllm:generation_tokens_total") == output)
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    assert all(
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages
    )
    assert [usage["completion_tokens"] for usage in usages[-2:]] == [1, 1], "the end is a token"
    assert usages[5]["completion_tokens"] < 100
    assert risen("twophase_requests_total", "ok") == len(usages)
    assert risen("twophase_tokens_total", "output") == output
    assert risen("twophase_tokens_total", "input") == prompt == risen("vllm:prompt_tokens_total")
    assert sum(v for k, v in samples(web).items() if k[0] == "twophase_inflight") == 0


@pytest.mark.parametrize("words", [300, 800])
def test_the_metric_of_the_first_token_is_what_the_caller_sees_queue_included(
    web: httpx.Client, words: int
) -> None:
    def counted() -> list[float]:  # of prompts in which the others are not
        names = ("twophase_ttft_seconds_count", "twophase_ttft_seconds_sum")
        found = samples(web).items()
        return [sum(value for key, value in found if key[0] == name and "257-1024" in key) for name in names]

    before = counted()
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(phases, web, n=4, max_tokens=100) for _ in range(2)]
        until(lambda: any(value > 0 for key, value in samples(web).items() if key[0] == RUNNING))
        began_s = time.monotonic()
        with web.stream("POST", CHAT, json=request(words, stream=True, max_tokens=50)) as response:
            assert response.status_code == 200
            seen_s = [time.monotonic() - began_s for line in response.iter_lines() if TEXT.search(line)]
        assert web.post(CHAT, json=request(2000)).status_code == 400
        for other in busy:
            other.result()
    count, sum_s = before
    until(lambda: counted()[0] == count + 1)
    assert counted()[1] - sum_s == pytest.approx(seen_s[0], rel=0.1, abs=0.1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_work_in_the_engine_within_a_second(
    web: httpx.Client, small: Served, stream: bool
) -> None:
    content = orjson.dumps(request(n=16, max_tokens=900, stream=stream))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {KEYS['a']}\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(small.url).port or 80)) as wire:
        wire.sendall(head.encode() + content)
        until(lambda: any(value > 0 for key, value in samples(web).items() if key[0] == RUNNING), 30)
    time.sleep(1)
    now = samples(web)
    assert all(value == 0 for key, value in now.items() if key[0] in (RUNNING, "vllm:num_requests_waiting"))
    assert now["twophase_requests_total", "client_abort"] >= 1


def test_strangers_paths_and_methods_make_no_series(web: httpx.Client) -> None:
    web.get("/nothing")
    before = len(samples(web))
    for number in range(50):
        web.get(f"/path/{number}")
        web.request(f"ODD{number}", CHAT)
        web.post(f"{CHAT}/{number}")
    assert len(samples(web)) == before


def test_both_formats_of_the_metrics_have_the_same_names(web: httpx.Client) -> None:
    plain = web.get("/metrics").text
    open_metrics = web.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    for name in ("twophase_ttft_seconds_bucket", "vllm:num_requests_running", "vllm:prompt_tokens_total"):
        assert name in plain and name in open_metrics
    assert open_metrics.endswith("# EOF\n")
