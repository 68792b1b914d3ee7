"""A Redis of the tests' own: Debian's server on a free port, gone when they end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of a server that is up. Where it cannot be had the test is skipped, in CI it fails."""
    if find_spec("redis") is None:
        _without("the Python package redis is missing; install twophase[redis]")
    program = _program()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


def _program() -> str:
    program = shutil.which("redis-server")
    if program is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "capture_output": True}
        subprocess.run(["apt-get", "install", "-y", "redis-server"], check=False, **quiet)  # type: ignore[call-overload]
        program = shutil.which("redis-server")
    if program is None:
        _without("redis-server is missing; install Debian's package redis-server")
    return str(program)


def _without(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("redis-server did not come up")
