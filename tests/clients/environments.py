"""An environment for each client, made once from its lock and kept in the folder for what tests fetch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from requirements.install import package_index
from tests.system import cache_folder, do_without

CLIENTS = {
    "anthropic": "anthropic==2.14.0",
    # torch brings what GuideLLM takes for granted; here it is lent, so these are named.
    "guidellm": "guidellm==0.8.1\njinja2==3.1.6\nnetworkx==3.6.1\nsympy==1.14.0",
    "instructor": "instructor==1.17.0",
    "langchain": "langchain-openai==1.7.4",
    "litellm": "litellm==1.110.2",
    "openai": "openai==3.57.0",
    "pydantic_ai": "pydantic-ai-slim[openai]==2.68.0",
    "vllm_router": "vllm-router==0.1.17",
}
# Large, and good enough as it is here: a client that needs it finds that of our own environment.
LENT = {"guidellm": ("torch", "torchgen", "torch-*.dist-info")}
OURS = Path(sysconfig.get_path("purelib"))
LOCKS = Path(__file__).parent / "locks"
UV = Path(sys.executable).parent / "uv"


def environment(client: str) -> Path:
    """The folder `bin` of the client's own environment. A test whose client cannot be fetched is skipped."""
    lock = LOCKS / f"{client}.txt"
    lent = [path for pattern in LENT.get(client, ()) for path in sorted(OURS.glob(pattern))]
    made_from = hashlib.sha256(lock.read_bytes() + "".join(map(str, lent)).encode()).hexdigest()
    folder = cache_folder() / "clients" / f"{client}-{made_from[:12]}"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):  # another run of the tests may be at it
        if not folder.exists():
            _make(client, lock, lent, folder)
    return folder / "bin"


def _make(client: str, lock: Path, lent: Iterable[Path], folder: Path) -> None:
    """Whole or not at all: it gets its name when everything is in it."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    python = unfinished / "bin" / "python"
    _uv(client, "venv", "--relocatable", "--python", sys.executable, str(unfinished))
    _uv(client, "pip", "install", "--no-deps", "--python", str(python), "--requirements", str(lock))
    for path in lent:
        (unfinished / OURS.relative_to(sys.prefix) / path.name).symlink_to(path)
    unfinished.rename(folder)


def _uv(client: str, *arguments: str) -> None:
    environ = {**os.environ, **package_index(sys.executable)}
    done = subprocess.run([UV, *arguments], env=environ, capture_output=True, text=True, timeout=240)
    if done.returncode:
        do_without(
            f"the client {client} cannot be fetched; is the network there? {done.stderr.strip()[-300:]}"
        )
