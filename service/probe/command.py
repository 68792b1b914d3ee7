"""The command `twophase probe`: its options, and what it prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from service.probe.measure import OWN_PROMPT, Wish, measure
from service.probe.show import as_json, on_terminal, telling
from service.probe.trouble import ProbeError

KEY_VARIABLE = "OPENAI_API_KEY"
DESCRIPTION = """Measure which half of an answer is slow: reading the prompt (prefill) or writing the answer
(decode). Any OpenAI-compatible server will do; a Twophase also tells what only the server can know. Each
request gets a new first line, so that a prefix cache does not make reading look quicker than it is;
--cached leaves the prompt as it is."""


def add_probe(commands: Any) -> None:
    """Add the command to an argument parser's commands."""
    parser = commands.add_parser(
        "probe", help="measure which half is slow, at any server", description=DESCRIPTION
    )
    parser.add_argument("url", metavar="URL", help="the server, such as http://localhost:8000")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", help="what to ask (a question about lighthouses)")
    prompts.add_argument("--file", type=Path, help="a file with what to ask; - reads the standard input")
    parser.add_argument("--tokens", type=_whole, default=Wish.tokens, help="longest answer (%(default)s)")
    parser.add_argument("--requests", type=_whole, default=Wish.requests, help="how many (%(default)s)")
    parser.add_argument("--model", dest="asked_model", help="model to ask (the first that /v1/models names)")
    parser.add_argument(
        "--key", help=f"API key; better in {KEY_VARIABLE}, where no list of processes shows it"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=Wish.timeout_s, help="seconds for everything (%(default)g)"
    )
    parser.add_argument("--cached", action="store_true", help="send the same prompt each time, unchanged")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.set_defaults(run=probe)


def probe(options: argparse.Namespace) -> None:
    """Measure, and print what was found.

    Raises:
        ProbeError: nothing could be measured, and why.
    """
    wish = Wish(
        url=options.url,
        model=options.asked_model,
        key=options.key or os.environ.get(KEY_VARIABLE) or None,
        prompt=_prompt(options),
        tokens=options.tokens,
        requests=options.requests,
        timeout_s=options.timeout,
        cached=options.cached,
    )
    with telling(wish) as told:
        finding = measure(wish, told)
    if options.json:
        print(as_json(finding))
    else:
        on_terminal(finding, Console(highlight=False))


def _prompt(options: argparse.Namespace) -> str:
    if options.file is None:
        return OWN_PROMPT if options.prompt is None else str(options.prompt)
    try:
        text = sys.stdin.read() if str(options.file) == "-" else options.file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ProbeError(f"{options.file} cannot be read as text: {exc}") from None
    if not text.strip():
        raise ProbeError(f"{options.file} is empty; there is nothing to ask.")
    return str(text)


def _number(kind: Callable[[str], float], least: float, said: str, most: float) -> float:
    try:
        value = kind(said)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{said!r} is not from {least:g} to {most:g}")
    return value


def _whole(said: str) -> int:
    return int(_number(int, 1, said, 1_000_000))


def _seconds(said: str) -> float:
    return _number(float, 1, said, 86_400)
