"""`python -m bench.parsing`: what a tool call and reasoning cost per token, above plain text.

Three services on the same one-layer model: without parsers, with a tool parser, with a reasoning parser. One
works at a time, in alternating order, and the CPU time of its front end is divided by the tokens of its
answers. The model calls nothing by its own will, so calls are forced.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from rich.progress import track

from bench.child import BenchError
from bench.client import SETTLE_S, Connection, request
from bench.compare import TOY, model_folder
from bench.contestants import SERVED_NAME, Twophase
from bench.machine import Bystanders, describe
from bench.meter import Meter
from bench.random_model import name_marks
from bench.shapes import STREAM_PROMPT_WORDS, Shape, messages
from bench.stats import excesses, spread
from bench.stream import BadStream

LIMIT_US = 10.0
USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
SHOW_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
NOTE = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}


class Thinking(Twophase):
    """Whose model is said to think."""

    name, label = "thinking", "with a reasoning parser"
    settings: Mapping[str, str] = {**Twophase.settings, "TWOPHASE_REASONING_PARSER": "deepseek_r1"}


class Calling(Twophase):
    """Whose model is said to call tools."""

    name, label = "calling", "with a tool parser"
    settings: Mapping[str, str] = {**Twophase.settings, "TWOPHASE_TOOL_PARSER": "hermes"}


@dataclass(frozen=True, slots=True)
class Way:
    """One way of answering: who is asked, with which fields, and what must be in the answer."""

    name: str
    of: type[Twophase]
    fields: Mapping[str, Any]
    sign: bytes


FORCED = {"tools": [NOTE], "tool_choice": "required"}
PLAIN = Way("plain text", Twophase, {}, b'"content":"')
WAYS = (
    PLAIN,
    Way("reasoning", Thinking, {}, b'"reasoning":"'),
    Way("text that might call", Calling, {"tools": [NOTE]}, b'"content":"'),
    Way("a forced call", Calling, {**FORCED, "ignore_eos": False}, b'"arguments":"'),
)


async def us_per_token(service: Twophase, way: Way, shape: Shape, turn: int) -> float:
    """The front end's CPU time for one token of `shape.streams` answers at once.

    Raises:
        BenchError: an answer is not of the kind that was asked for.
    """
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(Connection, "127.0.0.1", service.port))[1] for _ in range(shape.streams)
    ]
    requests = [
        request(service.port, SERVED_NAME, messages(shape, turn, index), shape.tokens, **way.fields)
        for index in range(shape.streams)
    ]
    meter = Meter(service.front_end_pid)
    try:
        await asyncio.gather(*(one.ask(asked) for one, asked in zip(opened, requests, strict=True)))
        await asyncio.sleep(SETTLE_S)
        used = meter.stop()
    finally:
        for one in opened:
            one.close()
    return used.cpu_s * 1e6 / sum(_tokens(way, b"".join(one.parts)) for one in opened)


def _tokens(way: Way, answer: bytes) -> int:
    usage = USAGE.search(answer)
    if usage is None or way.sign not in answer:
        raise BenchError(f"{way.name} was asked for, and this came: {answer[-600:]!r}")
    return int(usage[1])


def measure(rounds: int, streams: int, tokens: int) -> None:
    """Serve, ask in turns, report.

    Raises:
        BenchError: a service did not start, or did not answer as asked.
    """
    with tempfile.TemporaryDirectory(prefix="twophase-parsing-") as name, ExitStack() as stack:
        folder = Path(name)
        model = model_folder(TOY, folder)
        name_marks(Path(model))
        template = Path(model) / "chat_template.jinja"
        template.write_text(SHOW_TOOLS + template.read_text())
        served = {kind: kind(model, folder) for kind in dict.fromkeys(way.of for way in WAYS)}
        for service in served.values():
            stack.callback(service.end)
            stack.callback(service.child.ask_to_end)
        for service in served.values():
            service.wait_ready()
        others = Bystanders([service.child for service in served.values()])
        found: dict[str, list[float]] = {way.name: [] for way in WAYS}
        for turn in track(range(-1, rounds), "rounds"):
            many = streams if turn >= 0 else 1  # at first one, who brings the schema
            shape = Shape("parsing", many, many, STREAM_PROMPT_WORDS, tokens)
            for way in WAYS[:: 1 if turn % 2 else -1]:
                us = uvloop.run(us_per_token(served[way.of], way, shape, turn))
                if turn >= 0:
                    found[way.name].append(us)
        _report(found, streams, tokens, others.share())


def _report(found: Mapping[str, Sequence[float]], streams: int, tokens: int, others: float) -> None:
    print(f"front-end CPU per token, {streams} streams of at most {tokens} tokens; others {others:.0%}")
    for what, value in describe():
        print(f"  {what}: {value}")
    for name, values in found.items():
        more = excesses(values, found[PLAIN.name])
        verdict = "" if name == PLAIN.name else f", above plain text {more.median:+.1f} us"
        if more.median > LIMIT_US:
            verdict += f" ({LIMIT_US:.0f} wanted)"
        middle = spread(values)
        print(f"  {name}: {middle.median:.1f} us ({middle.low:.1f} to {middle.high:.1f}){verdict}")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.parsing", description=(__doc__ or "").strip())
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="how often everything is measured (%(default)s)")
    add("--streams", type=int, default=32, help="at a time (%(default)s)")
    add("--tokens", type=int, default=256, help="of an answer, at most (%(default)s)")
    given = parser.parse_args(argv)
    try:
        measure(given.rounds, given.streams, given.tokens)
    except (BenchError, BadStream) as exc:
        print(f"parsing: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
