"""An environment for each client, made once from its lock and kept in the folder for what tests fetch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from requirements.install import package_index
from tests.system import cache_folder, do_without

TALKS = Path(__file__).parent / "talks"
LOCKS = Path(__file__).parent / "locks"
UV = Path(sys.executable).parent / "uv"


def talk(client: str) -> Path:
    """The program that talks to the service with this client."""
    return TALKS / f"ask_{client}.py"


def environment(client: str) -> Path:
    """The folder `bin` of the client's own environment. A test whose client cannot be fetched is skipped."""
    lock = LOCKS / f"{client}.txt"
    folder = cache_folder() / "clients" / f"{client}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):  # another run of the tests may be at it
        if not folder.exists():
            _make(client, lock, folder)
    return folder / "bin"


def _make(client: str, lock: Path, folder: Path) -> None:
    """Whole or not at all: it gets its name when everything is in it."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    python = unfinished / "bin" / "python"
    _uv(client, "venv", "--relocatable", "--python", sys.executable, str(unfinished))
    _uv(client, "pip", "install", "--no-deps", "--python", str(python), "--requirements", str(lock))
    unfinished.rename(folder)


def _uv(client: str, *arguments: str) -> None:
    environ = {**os.environ, **package_index(sys.executable)}
    done = subprocess.run([UV, *arguments], env=environ, capture_output=True, text=True, timeout=240)
    if done.returncode:
        do_without(
            f"the client {client} cannot be fetched; is the network there? {done.stderr.strip()[-300:]}"
        )
