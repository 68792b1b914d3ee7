"""The server under load: one that runs, or one that is started for this run; asked first what it can do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtests.answer import refusal_sentence

READY = re.compile(r"ready: \S+ at (http://\S+)")
START_S = 900.0
STOP_S = 60.0
ASK_S = 120.0
LAST_LINES = 15
LOOK_S = 0.1
NICER = 5
ROOT = Path(__file__).resolve().parent.parent


class TargetError(Exception):
    """The server cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers. `pid` is known when it was started here."""

    url: str
    key: str = ""
    pid: int | None = None

    def get(self, path: str) -> Any:
        """JSON of a GET; None where there is no such route or it is no JSON."""
        try:
            return self._ask(urllib.request.Request(f"{self.url}{path}"))
        except TargetError:
            return None

    def model(self) -> str:
        """The first model it serves.

        Raises:
            TargetError: it does not answer, or not to us.
        """
        listed = self._ask(urllib.request.Request(f"{self.url}/v1/models"))
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise TargetError(f"{self.url}/v1/models lists no model; name one with --model") from None

    def takes(self, model: str, **extras: Any) -> bool:
        """Whether it answers a small request with these fields in it; a 400 says no.

        Raises:
            TargetError: it answers neither with nor without them.
        """
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            orjson.dumps(body | extras),
            {"Content-Type": "application/json"},
        )
        try:
            self._ask(request)
        except BadRequest:
            return False
        return True

    def _ask(self, request: urllib.request.Request) -> Any:
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as response:
                return orjson.loads(response.read())
        except urllib.error.HTTPError as exc:
            sentence = f"{request.full_url} says {exc.code}: {refusal_sentence(exc.read())}"
            hint = " (a key goes into LOADTEST_API_KEY)" if exc.code in (401, 403) else ""
            raise (BadRequest if exc.code in (400, 422) else TargetError)(sentence + hint) from None
        except orjson.JSONDecodeError:
            raise TargetError(f"{request.full_url} answers with something that is no JSON") from None
        except OSError as exc:
            raise TargetError(f"nobody answers at {self.url}: {exc}") from None


class BadRequest(TargetError):
    """It does not take these fields."""


@contextmanager
def started(say: Callable[[str], None], log: Path, key: str) -> Iterator[Target]:
    """`twophase serve` on a free port, with the settings of the environment; stopped in the end.

    Raises:
        TargetError: it did not become ready, with its last words.
    """
    # Under a leash it ends when we do, however that ends. It is nicer than the load generator, which has to
    # keep its schedule on the same cores.
    leash = [sys.executable, "-m", "bench.leash", str(os.getpid())]
    command = [*leash, "nice", "-n", str(NICER), sys.executable, "-m", "service", "serve", "--port", "0"]
    say("starting a server (TWOPHASE_MODEL and other TWOPHASE_… variables are its settings)")
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        url = _wait_until_ready(process, log, say)
        yield Target(url, key, process.pid)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]) -> str:
    began = told = time.monotonic()
    while time.monotonic() < began + START_S:
        words = log.read_text(errors="replace")
        if match := READY.search(words):
            say(f"it is ready at {match[1]} after {time.monotonic() - began:.0f} s; its log is {log}")
            return match[1]
        if process.poll() is not None:
            raise TargetError("the server did not start:\n" + "\n".join(words.splitlines()[-LAST_LINES:]))
        if time.monotonic() > told + 15:
            told = time.monotonic()
            say(f"  {told - began:.0f} s: {(words.splitlines() or ['…'])[-1][:100]}")
        time.sleep(0.1)
    raise TargetError(f"the server was not ready after {START_S:.0f} s; its log is {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def drain_at(
    target: Target, begun: Callable[[], float | None], after_s: float, say: Callable[[str], None]
) -> None:
    """Tell a server that was started here to go, so long after the load has begun, by the monotonic clock."""

    assert target.pid is not None
    pid = target.pid

    def work() -> None:
        while (since := begun()) is None:
            time.sleep(LOOK_S)
        due = since + after_s
        time.sleep(max(0.0, due - time.monotonic()))
        os.kill(pid, signal.SIGTERM)
        say(f"SIGTERM sent {time.monotonic() - due:.2f} s after its instant")

    threading.Thread(target=work, name="drain", daemon=True).start()
