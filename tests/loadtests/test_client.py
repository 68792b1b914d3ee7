"""Locust's client against a server that knows what it did. Locust patches the standard library for gevent, so
it always runs in a process of its own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from loadtests.arrivals import poisson
from loadtests.launch import Locust
from loadtests.plan import Plan, Step
from loadtests.sample import Sample, read_samples
from tests.loadtests.scripted_server import Reply, Seen, serving

FIRST_S, GAP_S, TOKENS = 0.2, 0.05, 12
CLOSE_MS = 10.0
ATTEMPTS = 3


def measured(
    url: str, folder: Path, *steps: Step, processes: int = 1, patience_s: float = 20, most: int = 10_000
) -> list[Sample]:
    """Run these steps in Locust, `most` requests in all; what it wrote down."""
    folder.mkdir(exist_ok=True)
    plan = Plan(url, "scripted", str(folder), steps, "run", patience_s=patience_s, max_requests=most)
    Locust(processes).run(plan, "secret key", lambda line: None)
    return read_samples(folder)


async def timed(reply: Reply) -> None:
    """200 ms to the first token, 50 ms between tokens; a role before them."""
    await reply.head()
    await reply.event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    await asyncio.sleep(FIRST_S)
    for number in range(TOKENS):
        await asyncio.sleep(GAP_S if number else 0)
        await reply.token()
    await reply.end()


@pytest.mark.parametrize("users", [1, 64])
def test_the_client_sees_what_the_server_did(users: int, tmp_path: Path) -> None:
    """Held to the server's own stamps. A busy machine makes the client late now and then, which says nothing,
    so one of some attempts has to be close; a wrong way of reading is wrong by much in each of them.
    """
    told = []
    for attempt in range(ATTEMPTS):
        with serving(timed) as server:
            step = Step(0, "test", "timed", "chat", 1.0, 3.0, users, settle_s=1.0)
            samples = measured(server.url, tmp_path / str(attempt), step)
        told.append(_differences(samples, server.seen))
        if max(told[-1]) <= CLOSE_MS:
            return
    pytest.fail(f"first token off by, its time off 200 ms by, gaps off by (ms): {told}")


def test_what_is_cold_is_new_to_the_server_in_every_step(tmp_path: Path) -> None:
    with serving(timed) as server:
        steps = [Step(at, "test", f"step {at}", "chat", 0.5 + 2 * at, 1.5, 2) for at in range(2)]
        measured(server.url, tmp_path / "steps", *steps)
        asked = [str(seen.body["messages"]) for seen in server.seen]
    beginnings = {" ".join(text.split()[:12]) for text in asked}
    assert len(beginnings) == len(asked) >= 4


def test_steps_that_run_out_of_requests_are_noted(tmp_path: Path) -> None:
    with serving(timed) as server:
        steps = [
            Step(0, "test", "whole", "chat", 0.5, 1.0, rate_per_s=4.0),
            Step(1, "test", "cut", "chat", 2.0, 2.0, rate_per_s=20.0),
            Step(2, "test", "cut", "chat", 4.5, 1.0, users=1),
        ]
        samples = measured(server.url, tmp_path / "steps", *steps, most=20)
    assert len(samples) == 20 and {sample.step for sample in samples} == {0, 1}
    [witness] = (tmp_path / "steps").glob("witness-*.jsonl")
    cut = [line for line in witness.read_text().splitlines() if "cut" in line]
    assert cut == ['{"cut":1}', '{"cut":2}']


def _differences(samples: list[Sample], seen: list[Seen]) -> tuple[float, float, float]:
    """Medians of the differences of first tokens and gaps, which must all be there."""
    by_trace = {one.headers["traceparent"].split("-")[1]: one for one in seen}
    assert len(samples) == len(seen) and samples
    first, gaps = [], []
    for sample in samples:
        server = by_trace[sample.trace_id]
        assert (sample.outcome, sample.tokens, sample.counted) == ("ok", TOKENS, True)
        assert sample.first_ms is not None
        first.append(abs(sample.first_ms - sample.sent_ms - server.first_ms))
        gaps += [abs(a - b) for a, b in zip(sample.gaps_ms, server.gaps_ms, strict=True)]
    reported = [sample.first_ms - sample.sent_ms for sample in samples if sample.first_ms]
    return float(np.median(first)), abs(float(np.median(reported)) - FIRST_S * 1e3), float(np.median(gaps))


async def _fine(reply: Reply) -> None:
    await reply.head()
    await reply.token()
    await reply.end(tokens=5)


async def _error_event(reply: Reply) -> None:
    await reply.head()
    await reply.token()
    await reply.event(error={"message": "the engine has died"})


async def _cut(reply: Reply) -> None:
    await reply.head(more=b"transfer-encoding: chunked\r\n")
    await reply.raw(b"400\r\n")
    await reply.token()


async def _ended_early(reply: Reply) -> None:
    await reply.head()
    await reply.token()


async def _full(reply: Reply) -> None:
    await reply.head(b"429 Too Many Requests", b"application/json", b"retry-after: 3\r\n")
    await reply.raw(b'{"error": {"message": "The service is full"}}')


async def _draining(reply: Reply) -> None:
    await reply.head(b"503 Service Unavailable", b"application/json", b"retry-after: 7\r\n")
    await reply.raw(b'{"error": {"message": "It is going down"}}')


async def _down(reply: Reply) -> None:
    await reply.head(b"503 Service Unavailable", b"text/html")
    await reply.raw(b"<h1>No upstream</h1>")


async def _broken(reply: Reply) -> None:
    await reply.head(b"500 Internal Server Error", b"text/plain")
    await reply.raw(b"oops")


async def _silent(reply: Reply) -> None:
    await reply.head()
    await reply.event(choices=[{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}])
    await asyncio.sleep(30)


async def _nothing_said(reply: Reply) -> None:
    await reply.head()
    await reply.end(tokens=0)


async def _hangs_up(reply: Reply) -> None:
    """Without a word."""


async def _endless(reply: Reply) -> None:
    await reply.head()
    while True:
        await reply.token()
        await asyncio.sleep(0.01)


async def _whole(reply: Reply) -> None:
    await asyncio.sleep(0.05)
    await reply.head(kind=b"application/json")
    await reply.raw(
        b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}],'
        b' "usage": {"completion_tokens": 4}, "phases": {"queue_ms": 1.5}}'
    )


SCRIPTS = {
    "fine": _fine,
    "error event": _error_event,
    "cut": _cut,
    "ended early": _ended_early,
    "full": _full,
    "draining": _draining,
    "down": _down,
    "broken": _broken,
    "nothing said": _nothing_said,
    "hangs up": _hangs_up,
    "endless": _endless,
    "whole": _whole,
    "silent": _silent,  # last, since it keeps its user busy
}
CHANGES = {"endless": ",leave=1", "whole": ",stream=0"}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    """One request for each way in which an answer can go, all in one run."""
    names = list(SCRIPTS)

    async def play(reply: Reply) -> None:
        await SCRIPTS[names[int(str(reply.seen.body["max_tokens"])) - 1]](reply)

    steps = [
        Step(
            n,
            "test",
            name,
            f"chat,tokens={n + 1}{CHANGES.get(name, '')}",
            1 + n / 2,
            0.4,
            users=1,
            requests=1,
        )
        for n, name in enumerate(names)
    ]
    with serving(play) as server:
        folder = tmp_path_factory.mktemp("ends")
        samples = measured(server.url, folder, *steps, patience_s=1)
        assert all(seen.headers["authorization"] == "Bearer secret key" for seen in server.seen)
    return {names[sample.step]: sample for sample in samples}


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("fine", "ok"),
        ("whole", "ok"),
        ("error event", "error_event"),
        ("cut", "cut"),
        ("ended early", "cut"),
        ("full", "refused"),
        ("draining", "refused"),
        ("down", "http_error"),
        ("broken", "http_error"),
        ("silent", "timeout"),
        ("nothing said", "empty"),
        ("hangs up", "no_connection"),
        ("endless", "left"),
    ],
)
def test_each_end_has_its_name(ends: dict[str, Sample], script: str, outcome: str) -> None:
    assert ends[script].outcome == outcome, ends[script]


def test_a_refusal_is_no_failure_and_says_when_to_come_back(ends: dict[str, Sample]) -> None:
    assert [ends[name].retry_after_s for name in ("full", "draining")] == [3, 7]
    assert not ends["full"].failed and not ends["draining"].failed
    assert ends["full"].error == "The service is full"


def test_errors_and_cuts_inside_a_200_are_failures(ends: dict[str, Sample]) -> None:
    found = [ends[name] for name in ("error event", "cut", "ended early")]
    assert all(sample.status == 200 and sample.failed for sample in found)
    assert ends["error event"].error == "the engine has died"


def test_a_role_alone_does_not_stop_the_clock(ends: dict[str, Sample]) -> None:
    assert ends["silent"].headers_ms is not None
    assert ends["silent"].first_ms is None


def test_tokens_come_from_usage(ends: dict[str, Sample]) -> None:
    assert (ends["fine"].tokens, len(ends["fine"].gaps_ms)) == (5, 0)


def test_a_whole_answer_brings_its_phases_and_one_moment(ends: dict[str, Sample]) -> None:
    whole = ends["whole"]
    assert whole.phases == {"queue_ms": 1.5}
    assert whole.first_ms == whole.last_ms
    assert whole.tpot_ms is None


def test_processes_share_one_schedule(tmp_path: Path) -> None:
    """Which requests are sent, and when, does not depend on how many processes send them."""
    step = Step(0, "test", "open", "chat", 1.0, 2.0, rate_per_s=40)
    with serving(_fine) as server:
        samples = measured(server.url, tmp_path, step, processes=2)
    whole = list(poisson(40, 2.0, "1/test/open"))
    assert [sample.index for sample in samples] == list(range(len(whole)))
    assert [sample.into_s for sample in samples] == pytest.approx(whole, abs=1e-3)
    assert len(list(tmp_path.glob("samples-*.jsonl"))) >= 2


def test_nobody_there_is_a_failure_and_not_the_end(tmp_path: Path) -> None:
    step = Step(0, "test", "nobody", "chat", 1.0, 1.0, users=1, requests=1)
    (sample,) = measured("http://127.0.0.1:9", tmp_path, step)
    assert sample.outcome == "no_connection"
    assert sample.headers_ms is None
