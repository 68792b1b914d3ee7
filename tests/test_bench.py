"""The benchmark's own parts: its client, its arithmetic, its tables, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from bench import report
from bench.__main__ import main
from bench.child import ROOT, Child
from bench.client import Job
from bench.client import run as run_client
from bench.contestants import ENGINE_ARGS, Contestant, flags
from bench.meter import Used
from bench.outcome import Outcome, Timing, outcome
from bench.picture import draw
from bench.race import Race, Rules, order
from bench.sample import Results, Sample
from bench.shapes import Shape, further_turns, lead_in, messages, prompt, prompts, streams
from bench.stats import Spread, excesses, quantile, ratios, spread
from bench.stream import FIRST_TEXT, BadStream, check, ended
from bench.targets import FIRST, LATER, Target
from bench.written import sections, write_section

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"so"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no","type":"server_error","param":null,"code":"engine_unavailable"}}\n\n'
LABELS = {"bare": "bare AsyncLLM", "twophase": "Twophase", "vllm": "vllm serve"}


def chunked(*events: bytes, head: bytes = HEAD) -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return head + b"".join(parts) + b"0\r\n\r\n"


WHOLE = chunked(ROLE, b": keep-alive\n\n", TEXT, TEXT, LAST, USAGE, DONE)


def test_a_complete_answer_is_read() -> None:
    stream = check(WHOLE, tokens=3)
    assert (stream.tokens, stream.chunks, stream.text) == (3, 4, "soso!")


def test_events_may_share_a_chunk_or_be_cut_by_one() -> None:
    body = ROLE + TEXT + LAST + USAGE + DONE
    assert check(chunked(body), 3).text == "so!"
    assert check(chunked(body[:50], body[50:151], body[151:]), 3).text == "so!"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (chunked(TEXT, LAST, USAGE), "DONE"),
        (chunked(TEXT, LAST, USAGE, DONE, TEXT), "DONE"),
        (chunked(TEXT, USAGE, DONE), "finish"),
        (chunked(TEXT, LAST, LAST, USAGE, DONE), "finish"),
        (chunked(TEXT, LAST.replace(b"length", b"stop"), USAGE, DONE), "finish"),
        (chunked(TEXT, LAST, DONE), "usage"),
        (chunked(TEXT, LAST, USAGE, USAGE, DONE), "usage"),
        (chunked(TEXT, LAST, USAGE.replace(b":3", b":2"), DONE), "2 tokens where 3"),
        (chunked(TEXT, ERROR, DONE), "error"),
        (chunked(b"data: {broken\n\n", DONE), "JSON"),
        (chunked(b"event: x\n\n", DONE), "no event"),
        (chunked(DONE, head=HEAD.replace(b"200 OK", b"503 Busy")), "503"),
        (chunked(DONE, head=HEAD.replace(b"text/event-stream", b"application/json")), "event stream"),
        (chunked(DONE, head=HEAD.replace(b"chunked", b"identity")), "not chunked"),
        (WHOLE[:-5], "cut off"),
        (WHOLE.replace(b"\r\n0\r\n", b"\r\nzz\r\n"), "damaged"),
        (WHOLE + b"more", "follows"),
        (b"", "status"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong(raw: bytes, what: str) -> None:
    with pytest.raises(BadStream, match=what):
        check(raw, tokens=3)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_the_end_is_seen_wherever_the_network_cuts(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    parts = [WHOLE[a:b] for a, b in itertools.pairwise(edges) if a < b]
    assert [ended(parts[:count]) for count in range(1, len(parts) + 1)] == [False] * (len(parts) - 1) + [True]


def test_a_role_alone_is_no_text_but_a_quote_is() -> None:
    assert not FIRST_TEXT.search(ROLE)
    assert FIRST_TEXT.search(TEXT)
    assert FIRST_TEXT.search(b'{"delta":{"content": "\\"')


SHAPE = Shape("2 streams", streams=2, requests=4, words=3, tokens=3)


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[Job]:
    """A server on a real socket that reads a request and then does what it is told."""

    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
                answer(writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield Job(SHAPE, turn=1, port=port, pid=os.getpid(), model="m")
    finally:
        listening.close()
        await asyncio.gather(*(task for task in serving if task is not None))


async def test_the_client_asks_every_request_and_times_the_first_text() -> None:
    async with server(lambda writer: writer.write(WHOLE)) as job:
        done = await run_client(job)
    assert (done.requests, done.tokens, len(done.ttft_s)) == (4, 12, 4)
    assert 0 < done.ttft_s[0] <= done.ttft_s[-1] <= done.seconds
    assert done.cpu_s > 0
    assert done.peak_mb > 1


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (lambda writer: (writer.write(WHOLE[:300]), writer.close()), "closed the connection"),
        (lambda writer: writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\n{}"), "429"),
        (lambda writer: writer.write(chunked(TEXT, ERROR, DONE)), "error"),
    ],
)
async def test_the_client_fails_loudly(answer: Callable[[asyncio.StreamWriter], None], what: str) -> None:
    async with server(answer) as job:
        with pytest.raises(BadStream, match=what):
            await run_client(job)


def test_prompts_are_equal_for_every_contestant_and_new_in_every_turn() -> None:
    shape = prompts(100)
    assert prompt(shape, 1, 0) == prompt(shape, 1, 0)
    assert len(prompt(shape, 1, 0).split()) == 100
    seen = [prompt(shape, turn, index) for turn in range(3) for index in range(3)]
    assert len(set(seen)) == 9


def test_a_turn_goes_on_from_what_its_lead_in_has_sent() -> None:
    shape = further_turns(100)
    [known] = messages(lead_in(shape), -3, 0)
    first, second = messages(shape, 3, 0), messages(shape, 3, 1)
    assert first[0] == known and len(known["content"].split()) == 100
    assert [message["role"] for message in first] == ["user", "assistant", "user"]
    assert second[:3] == first and len(second) == 5
    assert messages(shape, 4, 0)[0] != known, "another turn, another conversation"


def test_few_streams_are_asked_more_than_once_and_long_prompts_less_often() -> None:
    assert [streams(count, 128, repeat=True).requests for count in (8, 64)] == [32, 64]
    assert streams(8, 128, repeat=False).requests == 8
    assert [prompts(words).requests for words in (100, 1000, 4000)] == [120, 48, 12]
    assert prompts(1000, 6).requests == 6
    short = lead_in(streams(8, 128, repeat=True))
    assert (short.streams, short.requests, short.tokens) == (8, 8, 32)


def test_an_outcome_is_made_of_the_whole_span_and_of_each_first_text() -> None:
    timings = [Timing(sent=1.0, first=1.5, ended=3.0), Timing(sent=1.1, first=None, ended=2.1)]
    done = outcome(timings, 8, Used(cpu_s=0.016, peak_mb=500))
    assert (done.requests, done.tokens, done.seconds) == (2, 16, 2.0)
    assert done.ttft_s == pytest.approx([0.5, 1.0])


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.5
    assert quantile([7.0], 0.99) == 7.0
    assert quantile(list(range(101)), 0.99) == pytest.approx(99)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_its_values(values: list[float], share: float) -> None:
    assert min(values) - 1e-6 <= quantile(values, share) <= max(values) + 1e-6


def test_ratios_are_taken_turn_by_turn() -> None:
    # The machine was half as fast in the second turn; that says nothing about either of the two.
    assert ratios([100, 50, 98], [200, 100, 200]) == Spread(0.5, 0.49, 0.5)
    assert excesses([30, 60], [20, 40]) == Spread(15, 10, 20)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0)


def test_everyone_is_first_and_last_equally_often() -> None:
    rounds = [order("abc", number) for number in range(6)]
    assert sorted(one[0] for one in rounds) == sorted(one[-1] for one in rounds) == list("aabbcc")
    befores = [(one.index("a") < one.index("b")) for one in rounds]
    assert befores.count(True) == 3


class Scripted(Contestant):
    """Answers at once, and remembers what it was asked."""

    def __init__(self, name: str, child: Child, asked: list[tuple[str, str, int]]) -> None:
        self.name = self.label = name
        self.child = child
        self._asked = asked

    def ready(self) -> bool:
        return True

    def run(self, shape: Shape, turn: int) -> Outcome:
        self._asked.append((self.name, shape.name, turn))
        return Outcome(1, 10, 0.5, [0.1], 0.001, 300, 0.0)


class Silent:
    """A watcher of which nobody hears."""

    def begins(self, what: str) -> None: ...

    def has(self, sample: Sample) -> None: ...

    def repeats(self, shape: Shape, others: float) -> None: ...

    def waits(self) -> None: ...


ALWAYS, NEVER = float("inf"), -1.0  # shares of the machine that others never, or always, exceed
ANY_TIME = float("inf")


@pytest.fixture
def asked() -> list[tuple[str, str, int]]:
    return []


@pytest.fixture
def race(tmp_path: Path, asked: list[tuple[str, str, int]]) -> Iterator[Race]:
    child = Child(["sleep", "600"], {}, tmp_path / "log")
    shapes = [streams(8, 4, repeat=False), prompts(100)]
    yield Race([Scripted(name, child, asked) for name in "ab"], shapes, Silent())
    child.ask_to_end()
    child.end()


def test_every_shape_is_asked_of_everyone_in_every_round(
    race: Race, asked: list[tuple[str, str, int]]
) -> None:
    results = race.run(Rules(2, ANY_TIME, calm=ALWAYS, repeats=9, patience_s=0))
    measured, lead_ins = asked[1::2], asked[::2]
    assert lead_ins == [(name, shape, -turn) for name, shape, turn in measured]
    assert [(name, shape) for name, shape, _ in measured] == [
        ("a", "8 streams"),
        ("b", "8 streams"),
        ("a", "100 words"),
        ("b", "100 words"),
        ("b", "8 streams"),
        ("a", "8 streams"),
        ("b", "100 words"),
        ("a", "100 words"),
    ]
    assert [turn for _, _, turn in measured] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert results.complete
    assert results.values("a", "8 streams", "tokens_per_s") == [20, 20]
    assert results.disturbed == []


def test_a_disturbed_turn_is_repeated_and_kept_apart(race: Race, asked: list[tuple[str, str, int]]) -> None:
    results = race.run(Rules(2, ANY_TIME, calm=NEVER, repeats=1, patience_s=0))
    assert len([turn for _, _, turn in asked if turn > 0]) == 8 + 2
    assert [one.turn for one in results.disturbed] == [1, 1]
    assert len(results.values("b", "100 words", "peak_mb")) == 2


def test_no_turn_begins_when_the_time_is_up(race: Race, asked: list[tuple[str, str, int]]) -> None:
    results = race.run(Rules(2, deadline=0, calm=ALWAYS, repeats=1, patience_s=0))
    assert (asked, results.samples, results.complete) == ([], [], False)


def test_everyone_is_warmed_up_with_everything(race: Race, asked: list[tuple[str, str, int]]) -> None:
    race.warm_up()
    assert sorted(asked) == sorted((name, shape, 0) for name in "ab" for shape in ("8 streams", "100 words"))


def sample(contestant: str, turn: int, **measures: float) -> Sample:
    plain = Sample(
        contestant, "64 streams", turn, 3000, 40, 5, 50, 90, 600, others=0.02, client_late=0.01, load=1.5
    )
    return replace(plain, **measures)  # type: ignore[arg-type]


@pytest.fixture
def results() -> Results:
    fast = [sample("bare", turn, tokens_per_s=4000 / turn, cpu_us_per_token=30 * turn) for turn in (1, 2)]
    # Out of order, as the alternation makes them.
    ours = [sample("twophase", turn, tokens_per_s=3600 / turn, cpu_us_per_token=42 * turn) for turn in (2, 1)]
    return Results([*fast, *ours])


def test_a_table_has_every_contestant_and_the_ratios(results: Results) -> None:
    text = report.tables(results, [streams(64, 128, repeat=True)], LABELS)
    assert "| 64 streams × 128 tokens | tokens/s |" in text
    assert "| bare AsyncLLM | 3,000 (2,000–4,000) | 45.0 (30.0–60.0) |" in text
    assert "| Twophase ÷ bare AsyncLLM | 0.90 (0.90–0.90) | 1.40 (1.40–1.40) |" in text
    assert "vllm serve" not in text
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_request_costs_share_one_table(results: Results) -> None:
    results.samples = [
        replace(one, shape=words) for one in results.samples for words in ("100 words", "9 words")
    ]
    text = report.tables(results, [prompts(9), prompts(100)], LABELS)
    assert text.startswith("| CPU per request, ms; 8 tokens out | 9 words | 100 words |\n")
    assert "| bare AsyncLLM | 5.00 (5.00–5.00) | 5.00 (5.00–5.00) |" in text


def test_targets_are_judged_by_the_median_of_the_ratios(results: Results) -> None:
    text = report.verdicts(results, FIRST, LABELS)
    assert "| tokens/s, 64 streams | ≥ 0.9 × bare AsyncLLM | 0.90 (0.90–0.90) × | yes |" in text
    assert "| ≤ bare AsyncLLM + 25 µs | + 18.0 (12.0–24.0) µs | yes |" in text
    strict = Target("x", "64 streams", "cpu_us_per_token", "bare", 12, difference=True)
    assert "**no**" in report.verdicts(results, [strict], LABELS)


def test_targets_that_a_run_cannot_judge_are_left_out(results: Results) -> None:
    judged = report.verdicts(results, LATER, LABELS)
    assert "vllm serve" not in judged
    assert "256 streams" not in judged
    assert report.verdicts(Results([sample("bare", 1)]), LATER, LABELS) == ""


def test_the_best_contestant_is_found_in_each_turn(results: Results) -> None:
    results.samples += [sample("vllm", 1, tokens_per_s=100), sample("vllm", 2, tokens_per_s=2500)]
    assert results.best("64 streams", "tokens_per_s") == [4000, 2500]


def test_how_calm_the_machine_was_is_told(results: Results) -> None:
    results.disturbed = [sample(name, 7, others=0.5) for name in LABELS]
    results.complete = False
    said = report.disturbance(results)
    assert "Other programs took at most 2 %" in said
    assert "waited for a CPU at most 1 %" in said
    assert "1 disturbed turns were repeated" in said
    assert "time was up" in said


def test_a_picture_has_a_panel_for_each_kind_of_load_and_a_line_for_each_contestant(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **how: drawn.append(figure))
    more = [replace(one, shape="256 streams") for one in results.samples]
    draw(Results([*results.samples, *more]), LABELS, "one-layer", tmp_path)
    cold = [replace(one, shape="100 words") for one in results.samples]
    draw(Results([*results.samples, *cold]), LABELS, "one-layer", tmp_path)
    assert [len(figure.axes) for figure in drawn] == [1, 2]
    [streams] = drawn[0].axes
    legend = streams.get_legend()
    told = {label.get_text() for label in legend.get_texts()} if legend else set()
    assert told == {"bare AsyncLLM", "Twophase"}
    assert [label.get_text() for label in streams.get_xticklabels()] == ["64", "256"]


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    write_section("one-layer", "old", file)
    write_section("smollm2", "kept", file)
    write_section("one-layer", "| new |\n", file)
    found = sections(file.read_text())
    assert [body.strip() for body in found.values()] == ["| new |", "kept"]
    assert file.read_text().startswith("# ")


def test_engine_arguments_become_flags() -> None:
    line = flags({"enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": 256})
    assert line == ["--enforce-eager", "--no-enable-prefix-caching", "--max-num-seqs", "256"]
    assert "--kv-cache-memory-bytes" in flags(ENGINE_ARGS)


@pytest.mark.parametrize(
    "line", ["--rounds 0", "--streams 8,-1", "--only bare,none", "--streams 0 --words 0"]
)
def test_senseless_options_are_refused_before_anything_starts(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert "error" in capsys.readouterr().err


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def soon(fact: Callable[[], bool]) -> bool:
    limit = time.monotonic() + 10
    while not fact() and time.monotonic() < limit:
        time.sleep(0.02)
    return fact()


def test_a_child_ends_with_all_that_it_started(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "sleep 600 & echo $!; wait"], {}, tmp_path / "log", talks=True)
    grandchild = int(child.hear(10) or 0)
    assert alive(grandchild)
    child.ask_to_end()
    child.end()
    assert not child.running
    assert not alive(grandchild)


def test_a_child_ends_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    code = f"""
import pathlib, time
from bench.child import Child
print(Child(["sleep", "600"], {{}}, pathlib.Path({str(tmp_path / "log")!r})).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert soon(lambda: psutil.Process(pid).name() == "sleep")
        parent.send_signal(signal.SIGKILL)
    assert soon(lambda: not alive(pid))
