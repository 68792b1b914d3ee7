"""The probe at a plain OpenAI server that tells no phases, and at servers that do everything wrong."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.probe.advice import advice
from service.probe.finding import Finding
from service.probe.measure import Wish, measure
from service.probe.target import base_url
from service.probe.trouble import ProbeError
from tests.loadtests.scripted_server import JSON, Reply, Script, ScriptedServer, serving
from tests.test_command_line import twophase


class Quiet:
    """Progress that nobody watches, but for what was begun."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.pieces = 0

    def step(self, what: str) -> None:
        self.steps.append(what)

    def piece(self) -> None:
        self.pieces += 1


async def models(reply: Reply, *names: str) -> bool:
    """Answer the question for models, which is the one without a body; whether it was that."""
    if reply.seen.body:
        return False
    await reply.head(kind=JSON)
    await reply.raw(json.dumps({"data": [{"id": name} for name in names]}).encode())
    return True


def plain(first_s: float, gap_s: float, tokens: int, *names: str) -> Script:
    """A server of one pace that says nothing about itself."""

    async def script(reply: Reply) -> None:
        if await models(reply, *(names or ("plain",))):
            return
        await reply.head()
        await asyncio.sleep(first_s)
        for number in range(min(tokens, int(str(reply.seen.body["max_tokens"])))):
            await asyncio.sleep(gap_s if number else 0)
            await reply.token()
        await reply.end()

    return script


def refusing(status: bytes, field: str, error: dict[str, Any]) -> Script:
    """Takes no request that has `field`; answers all others."""
    answer = plain(0, 0, 5)

    async def script(reply: Reply) -> None:
        if field in reply.seen.body:
            await reply.head(status, JSON)
            await reply.raw(json.dumps({"error": error}).encode())
        else:
            if limit := reply.seen.body.get("max_completion_tokens"):
                reply.seen.body["max_tokens"] = limit
            await answer(reply)

    return script


def probe(server: ScriptedServer, **wish: Any) -> Finding:
    """One measurement."""
    return measure(Wish(server.url, **{"requests": 2, "timeout_s": 30, **wish}), Quiet())


def chats(server: ScriptedServer) -> list[dict[str, Any]]:
    """The bodies of chat requests, the warm-up first."""
    return [dict(seen.body) for seen in server.seen if seen.body]


def test_a_long_answer_is_bound_by_decode() -> None:
    with serving(plain(0.05, 0.03, 20)) as server:
        found = probe(server)
    assert found.verdict == "decode" and found.output_tokens == 20 and not found.has_phases
    assert "19 steps" in advice(found)


def test_a_long_prompt_is_bound_by_prefill_and_what_is_not_known_is_said() -> None:
    with serving(plain(0.6, 0.005, 5)) as server:
        found = probe(server)
    assert found.verdict == "prefill"
    assert "whatever came before the first token" in advice(found)
    assert any("queue" in line for line in found.unknown) and any("cache" in line for line in found.unknown)


def test_what_is_measured_is_what_the_server_did() -> None:
    with serving(plain(0.3, 0.04, 11)) as server:
        found = probe(server, requests=1)
    did = server.seen[-1]
    assert found.first_ms.median >= did.first_ms
    assert found.pace_ms.median == pytest.approx(sum(did.gaps_ms) / 10, rel=0.1)
    assert sum(found.parts.values()) == pytest.approx(found.total_ms.median)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_phases_of_the_server_divide_what_was_seen() -> None:
    phases = {"admission_ms": 5, "queue_ms": 400, "prefill_ms": 20, "decode_ms": 30, "total_ms": 460}

    async def script(reply: Reply) -> None:
        if await models(reply, "two"):
            return
        await reply.head()
        await asyncio.sleep(0.46)
        await reply.token()
        await reply.event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2}, phases=phases)
        await reply.raw(b"data: [DONE]\n\n")

    with serving(script) as server:
        found = probe(server, requests=1)
    assert found.verdict == "queue" and found.has_phases
    assert (found.parts["queue"], found.parts["prefill"], found.parts["service"]) == (405, 20, 5)
    assert sum(found.parts.values()) == pytest.approx(found.total_ms.median)
    assert "neither reading nor writing is slow" in advice(found)


def test_every_request_is_new_to_a_prefix_cache_unless_wished_otherwise() -> None:
    with serving(plain(0, 0, 2)) as server:
        probe(server, prompt="Same.", requests=3)
        prompts = [body["messages"][0]["content"] for body in chats(server)]
        assert len(set(prompts)) == 4 and all(prompt.endswith("\nSame.") for prompt in prompts)
        server.seen.clear()
        probe(server, prompt="Same.", requests=3, cached=True)
        assert {body["messages"][0]["content"] for body in chats(server)} == {"Same."}


def test_the_first_model_is_asked_when_none_is_named() -> None:
    with serving(plain(0, 0, 2, "one", "other")) as server:
        found = probe(server)
        assert found.model == "one" and "2 models" in found.notes[0]
        assert chats(server)[0]["model"] == "one"
        server.seen.clear()
        assert probe(server, model="other").model == "other"


def test_a_server_that_sends_no_usage_has_its_pieces_counted() -> None:
    async def script(reply: Reply) -> None:
        if await models(reply, "silent"):
            return
        await reply.head()
        for _ in range(7):
            await reply.token()
        await reply.raw(b"data: [DONE]\n\n")

    with serving(script) as server:
        found = probe(server)
    assert found.output_tokens == 7 and found.prompt_tokens is None
    assert any("pieces of text are counted" in line for line in found.unknown)


def test_fields_a_server_does_not_take_are_left_out_or_renamed() -> None:
    refusal = {"message": "Unknown field: stream_options", "param": "stream_options"}
    with serving(refusing(b"400 Bad Request", "stream_options", refusal)) as server:
        assert probe(server).output_tokens == 5
        assert "stream_options" not in chats(server)[-1]
    refusal = {"message": "Use 'max_completion_tokens' instead.", "param": "max_tokens"}
    with serving(refusing(b"400 Bad Request", "max_tokens", refusal)) as server:
        assert probe(server, tokens=9).output_tokens == 5
        assert chats(server)[-1]["max_completion_tokens"] == 9


def refused(server: ScriptedServer, **wish: Any) -> str:
    """What is said when nothing can be measured."""
    with pytest.raises(ProbeError) as said:
        probe(server, **wish)
    return str(said.value)


def test_a_model_that_is_not_there_is_answered_with_those_that_are() -> None:
    error = {"message": "The model `x` does not exist.", "code": "model_not_found"}
    with serving(refusing(b"404 Not Found", "model", error)) as server:
        assert refused(server, model="x") == "There is no model x; this server has plain."


def test_a_missing_key_is_said_with_where_to_put_it() -> None:
    async def script(reply: Reply) -> None:
        if reply.seen.headers.get("authorization") == "Bearer right":
            await plain(0, 0, 2)(reply)
        else:
            await reply.head(b"401 Unauthorized", JSON)
            await reply.raw(b'{"error": {"message": "No key."}}')

    with serving(script) as server:
        assert "OPENAI_API_KEY" in refused(server)
        assert probe(server, key="right").output_tokens == 2


def test_what_speaks_another_language_is_said_to() -> None:
    async def page(reply: Reply) -> None:
        await reply.head(kind=b"text/html")
        await reply.raw(b"<h1>Hello</h1>")

    async def missing(reply: Reply) -> None:
        await reply.head(b"404 Not Found", b"text/html")
        await reply.raw(b"<h1>Nothing here</h1>" + b"x" * 10_000)

    with serving(page) as server:
        assert "the right base URL?" in refused(server)
        assert "did not stream its answer" in refused(server, model="x")
    with serving(missing) as server:
        said = refused(server)
        assert "It often ends in /v1" in said and len(said) < 500


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (b'data: {"error": {"message": "out of memory"}}\n\n', "broke off: out of memory"),
        (b"data: not json\n\n", "no JSON"),
        (b"data: [DONE]\n\n", "no text"),
        (b'data: {"choices": []}\n\ndata: 7\n\ndata: [DONE]\n\n', "no text"),
    ],
)
def test_an_answer_that_breaks_is_said_in_words(events: bytes, said: str) -> None:
    async def script(reply: Reply) -> None:
        await reply.head()
        await reply.raw(events)

    with serving(script) as server:
        assert said in refused(server, model="x")


def test_time_is_bounded_and_what_was_measured_in_it_counts() -> None:
    async def stuck(reply: Reply) -> None:
        if not await models(reply, "slow"):
            await reply.head()
            await reply.token()
            await asyncio.sleep(60)

    with serving(stuck) as server:
        assert "--timeout" in refused(server, timeout_s=1)

    async def stuck_later(reply: Reply) -> None:
        await (plain(0, 0, 3) if len(server.seen) < 4 else stuck)(reply)

    with serving(stuck_later) as server:
        found = probe(server, requests=5, timeout_s=2)
    assert found.answers == 1 and "Time ran out after 1 of 5" in found.notes[-1]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http://h", "http://h/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/openai/v2", "https://h/openai/v2"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_may_be_given_in_many_ways(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize("given", ["", "http://", "ftp://h", "http://h:port", "http://[::1"])
def test_what_is_no_address_is_said(given: str) -> None:
    with pytest.raises(ProbeError, match="no address of a server"):
        base_url(given)


def test_nobody_listening_is_one_line_with_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = twophase("probe", f"127.0.0.1:{free.getsockname()[1]}")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "twophase serve" in done.stderr


def test_json_goes_to_the_output_and_has_every_figure() -> None:
    with serving(plain(0.05, 0.01, 6)) as server:
        done = twophase("probe", server.url, "--json", "--requests", "2", "--tokens", "6", TWOPHASE_NO="1")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["verdict"] in ("prefill", "decode") and found["output_tokens"] == 6
    assert set(found["shares"]) == {"prefill", "decode"} and found["advice"]
    assert set(found["first_ms"]) == {"median", "least", "most"}


def test_the_terminal_shows_the_sum_the_chart_and_the_verdict() -> None:
    with serving(plain(0.05, 0.02, 10)) as server:
        done = twophase("probe", server.url, "--requests", "1", "--prompt", "Hello")
    assert "to the first token + 9 ×" in done.stdout
    assert "█" in done.stdout and "Bound by decode" in done.stdout
    assert "What this server does not tell" in done.stdout


def test_a_prompt_may_come_from_a_file_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "asked").write_text("From a file.")
    with serving(plain(0, 0, 2)) as server:
        assert "is empty" in twophase("probe", server.url, "--file", str(tmp_path / "empty")).stderr
        assert twophase("probe", server.url, "--file", str(tmp_path / "nowhere")).returncode == 1
        server.seen.clear()
        twophase("probe", server.url, "--file", str(tmp_path / "asked"))
        assert chats(server)[-1]["messages"][0]["content"].endswith("\nFrom a file.")
        assert twophase("probe", server.url, "--tokens", "0").returncode == 2


def test_only_comments_do_not_make_time_stand_still() -> None:
    async def patient(reply: Reply) -> None:
        if not await models(reply, "slow"):
            await reply.head()
            while True:
                await reply.raw(b": keep-alive\n\n")
                await asyncio.sleep(0.1)

    with serving(patient) as server:
        assert "--timeout" in refused(server, timeout_s=1)


def test_an_answer_in_one_piece_has_no_verdict() -> None:
    async def held_back(reply: Reply) -> None:
        if not await models(reply, "held"):
            await reply.head()
            await reply.token()
            await reply.end(tokens=128)

    with serving(held_back) as server:
        assert "128 tokens came in one piece" in refused(server)


async def test_timed_requests_share_one_connection() -> None:
    opened = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                kind, body = b"application/json", b'{"data":[{"id":"m"}]}'
                if length:
                    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
                    kind, body = b"text/event-stream", 3 * event + b"data: [DONE]\n\n"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind)
                writer.write(b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        await asyncio.to_thread(measure, Wish(url, requests=3), Quiet())
        assert len(opened) == 1
        for writer in opened:
            writer.close()


@pytest.mark.parametrize("key", ["sk-secret\r", "sk-secret ", "\tsk-secret"])
def test_what_surrounds_a_key_is_no_part_of_it(key: str) -> None:
    with serving(plain(0, 0, 2)) as server:
        done = twophase("probe", server.url, "--key", key, "--requests", "1")
        assert done.returncode == 0 and "secret" not in done.stderr
        assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer sk-secret"}


def test_a_key_that_cannot_be_one_and_an_address_with_a_password_are_not_repeated() -> None:
    for arguments in (("h", "--key", "sk secret"), ("http://me:secret@h",)):
        done = twophase("probe", *arguments)
        assert done.returncode == 1 and done.stderr and "secret" not in done.stderr


def test_a_key_is_in_no_repr() -> None:
    assert "secret" not in repr(replace(Wish("h"), key="secret"))
