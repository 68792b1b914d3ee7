"""Make the environment: `python3.11 requirements/install.py [--venv .venv] [--dev] [--ray]`.

It runs before anything is installed, so it needs only the standard library. A journal inside the environment
says what is done: a second run finds nothing to do, and what an interrupted run left half-made is thrown
away, because a package that was being unpacked looks installed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_GB = {"cpu": 4, "cuda": 10}
HEARTBEAT_S = 15

NETWORK = "Is the network there, and does pip know the proxy or mirror it needs (pip config list)?"
TORCH = f"""This build of torch is in PyTorch's own index only, {TORCH_INDEX}.
Where that cannot be reached, put the wheel into a folder and name the folder in PIP_FIND_LINKS."""


class Failed(Exception):
    """Something the person at the keyboard has to see to; the text says what."""


class Step(NamedTuple):
    """One thing to do; it is done for as long as what it was made from stays the same."""

    name: str
    made_from: tuple[object, ...]
    do: Callable[[], None]
    hint: str = NETWORK

    @property
    def digest(self) -> str:
        contents = (it.read_bytes() if isinstance(it, Path) else str(it).encode() for it in self.made_from)
        return hashlib.sha256(b"\0".join(contents)).hexdigest()


class Environment:
    """The folder to fill, and the journal of what was done to it."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.python = str(path / "bin" / "python")
        self.done: dict[str, str] = {}
        self.unfinished = ""
        self._journal = path / "installed.json"
        self._lock_fd = lock_fd
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.done, self.unfinished = json.loads(self._journal.read_text())

    def note(self, unfinished: str) -> None:
        self.unfinished = unfinished
        fresh = self._journal.with_suffix(".new")
        fresh.write_text(json.dumps([self.done, unfinished]))
        fresh.replace(self._journal)

    def empty(self) -> None:
        """Throw the folder's content away, but never that of a folder this script did not make."""
        if not self._journal.exists() and self.path.exists() and any(self.path.iterdir()):
            raise Failed(f"{self.path} was not made by this script: remove it, or name another with --venv.")
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        self.done = {}
        self.note(unfinished="venv")

    def create(self) -> None:
        self._run(sys.executable, "-m", "venv", str(self.path))

    def pip(self, *arguments: str) -> None:
        self._run(self.python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", *arguments)

    def fast_pip(self, *arguments: str) -> None:
        """With uv, in seconds for pip's minutes; where uv fails, with pip, which may know a mirror."""
        uv = [str(self.path / "bin" / "uv"), "pip", "install", "--no-deps", "--python", self.python]
        before = self._installed()
        try:
            self._run(*uv, *arguments, **package_index(self.python))
        except Failed as why:
            if self._installed() != before:  # half-made: pip would take what lies there for whole
                raise
            print(f"{why}\n      uv could not; now pip, which takes minutes")
            self.pip(*arguments)

    def compile(self) -> None:
        """Keep what all packages compile to, as far as they compile."""
        program = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, workers=0)"
        [packages] = self.path.glob("lib/python*/site-packages")
        self._run(self.python, "-c", program, str(packages))

    def _installed(self) -> set[str]:
        return {path.name for path in self.path.glob("lib/python*/site-packages/*")}

    def _run(self, *command: str, **variables: str) -> None:
        """Run a command with a sign of life. If it fails, its last words are the error."""
        ours = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")}
        heard = not sys.stdout.isatty()  # on a terminal the command shows its own progress
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=ours | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if heard else None,
            stderr=subprocess.STDOUT if heard else None,
            text=True,
            errors="replace",
            pass_fds=[self._lock_fd],  # if we are killed, the folder stays locked until the child has ended
        )
        try:
            last_words = listen(process) if heard else []
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code:
            raise Failed("\n".join(last_words) or f"It ended with exit code {code}; its own words are above.")


def package_index(python: str) -> dict[str, str]:
    """The variable that names to uv the index that pip was told of, if any: uv reads no settings of pip."""
    asked = [python, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    index = os.environ.get("PIP_INDEX_URL") or found.strip()
    return {"UV_DEFAULT_INDEX": index} if index else {}


def listen(process: subprocess.Popen[str]) -> list[str]:
    """Read to the end, keep the last lines, and say now and then that it still runs."""
    tail: collections.deque[str] = collections.deque(maxlen=12)
    reader = threading.Thread(target=lambda: tail.extend(map(str.rstrip, process.stdout or ())), daemon=True)
    reader.start()
    began = time.monotonic()
    while True:
        reader.join(HEARTBEAT_S)
        if not reader.is_alive():
            return list(tail)
        print(f"      {time.monotonic() - began:.0f} s: {tail[-1][:90] if tail else 'working'}")


def check_machine() -> None:
    python = f"this is Python {platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] != (3, 11):
        raise Failed(f"Python 3.11 is needed, and {python}. Install it, or make PYTHON=/its/path")
    if not importlib.util.find_spec("ensurepip"):
        raise Failed(f"{python}, without its venv module. On Debian or Ubuntu: apt install python3.11-venv")
    libc, version = platform.libc_ver()
    new_enough = libc == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 31)
    if (platform.system(), platform.machine(), new_enough) != ("Linux", "x86_64", True):
        raise Failed(
            f"The locks are for Linux on x86_64 with glibc 2.31 or newer, and this is {platform.platform()}. "
            "Elsewhere let pip choose the versions: pip install -e '.[cpu]'"
        )


def check_libraries(device: str) -> None:
    """What the engine links to or calls, and no package brings."""
    if device == "cpu":
        try:
            ctypes.CDLL("libnuma.so.1")
        except OSError:
            raise Failed("The library libnuma is needed. On Debian or Ubuntu: apt install libnuma1") from None
    elif not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise Failed(
            "A C compiler is needed: Triton makes a launcher for each kernel. On Debian or Ubuntu: "
            "apt install gcc libc6-dev"
        )


def choose_device() -> str:
    wanted = os.environ.get("TWOPHASE_DEVICE", "auto").lower()
    if wanted in ("cpu", "cuda"):
        return wanted
    if wanted != "auto":
        raise Failed(f"TWOPHASE_DEVICE is {wanted!r}; it can be cpu, cuda or auto.")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20).returncode == 0:
            return "cuda"
    return "cpu"


def plan(env: Environment, device: str, more: Sequence[str]) -> list[Step]:
    """All that makes the environment, in order; `more` names what it is to have beside the service."""
    tools, packages = (LOCKS / f"{name}.lock" for name in ("install", device))
    locked = ("--only-binary", ":all:", "--require-hashes", "-r")
    torch = pin("torch", packages)

    def install_torch() -> None:
        alone = env.path / "torch.lock"  # only a file can give a hash
        alone.write_text(torch)
        env.pip("--no-compile", "--retries", "0", "--extra-index-url", TORCH_INDEX, *locked, str(alone))

    def beside(name: str) -> Step:
        lock = LOCKS / f"{name}.lock"
        return Step(name, (lock,), lambda: env.fast_pip(*locked, str(lock)))

    def install_project() -> None:
        env.fast_pip("--no-build-isolation", "-e", str(ROOT))

    steps = [
        Step("venv", (sys.version, sys.base_prefix, str(env.path)), env.create, hint=""),
        Step("tools", (tools,), lambda: env.pip(*locked, str(tools))),
        Step("torch", (torch,), install_torch, TORCH),
        Step("packages", (packages,), lambda: env.fast_pip(*locked, str(packages))),
        # An engine is three processes that import thousands of files. Where Python may not keep what it
        # compiles, as in the read-only folders of an image, that would take each of them 15 s at every start.
        Step("bytecode", (packages,), env.compile),
        *map(beside, more),
        Step("twophase", (ROOT / "pyproject.toml", str(ROOT)), install_project, hint=""),
    ]
    return [step for step in steps if step.name != "torch" or device != "cuda"]


def pin(name: str, lock: Path) -> str:
    """The lines of one package in a lock: its version, and its hashes."""
    lines = iter(lock.read_text().splitlines())
    found = [next(line for line in lines if line.startswith(f"{name}=="))]
    while found[-1].endswith("\\"):
        found.append(next(lines))
    return "\n".join(found)


def install(env: Environment, device: str, more: Sequence[str]) -> None:
    steps = plan(env, device, more)
    # Twophase itself is only a link to this folder: it can be laid again over whatever is there.
    changed = [s.name for s in steps[:-1] if env.done.get(s.name, s.digest) != s.digest]
    if changed or env.unfinished or not env.done:
        env.empty()
        if (free := free_gb(env.path)) < DISK_GB[device]:
            raise Failed(f"This needs {DISK_GB[device]} GB of disk, and {env.path} has {free:.1f} GB left.")
        print(f"Installing for {device} into {env.path}")
    for number, step in enumerate(steps, 1):
        if env.done.get(step.name) == step.digest:
            continue
        print(f"[{number}/{len(steps)}] {step.name}")
        began = time.monotonic()
        env.note(unfinished="" if step is steps[-1] else step.name)
        try:
            step.do()
        except Failed as why:
            raise Failed(f"{why}\n\nStep {step.name} failed. {advice(str(why), step, env.path)}") from why
        env.done[step.name] = step.digest
        env.note(unfinished="")
        print(f"      {time.monotonic() - began:.1f} s")


def free_gb(path: Path) -> float:
    return shutil.disk_usage(path).free / 1e9


def advice(why: str, step: Step, path: Path) -> str:
    if "No space left" in why or free_gb(path) < 0.2:
        return f"The disk is full: {path} has {free_gb(path):.1f} GB left; caches and /tmp need some too."
    if "hash" in why.lower() and "match" in why.lower():
        return "A file is not the one that was locked. Clear pip's and uv's caches; if it stays so, ask why."
    return step.hint


@contextlib.contextmanager
def lock(venv: Path) -> Iterator[int]:
    """One install at a time: the second waits, and then finds the work done."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(venv.with_name(f"{venv.name}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another install is filling {venv}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(description="Install Twophase, as locked, in an environment of its own.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder")
    parser.add_argument("--dev", action="append_const", dest="more", const="dev", help="with the test tools")
    parser.add_argument("--ray", action="append_const", dest="more", const="ray", help="with Ray Serve")
    arguments = parser.parse_args()
    venv = arguments.venv.resolve()
    try:
        check_machine()
        device = choose_device()
        check_libraries(device)
        with lock(venv) as lock_fd:
            install(Environment(venv, lock_fd), device, arguments.more or [])
    except (Failed, OSError) as why:
        print(why, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The next run starts again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
