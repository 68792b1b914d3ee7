"""The model folder: sealed with a manifest when it is whole, and never believed without one that fits."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from service.engine.embedded.source import Source

FORMAT = 2  # raise it when the conversion changes: folders made the old way are then made again
MANIFEST = "manifest.json"


def seal(folder: Path, source: Source) -> None:
    """Bring every file to the disk and list it, with size and SHA-256, in the manifest."""
    files = {path.name: _settled(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "gguf_sha256": source.gguf_sha256, "files": files}
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=1) + "\n")
    _settled(path)
    sync(folder)


def _settled(path: Path) -> dict[str, int | str]:
    path.chmod(0o644)  # safetensors writes 0600, and a cache may be shared
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def sync(folder: Path) -> None:
    """Bring the names in `folder` to the disk, so that a power cut cannot undo a rename."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fault(folder: Path, source: Source, *, thorough: bool) -> str | None:
    """Why `folder` cannot be used, or None; compares sizes, and every byte when `thorough`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if (manifest["format"], manifest["gguf_sha256"]) != (FORMAT, source.gguf_sha256):
            return "it was made by another version"
        damaged = [
            name for name, listed in manifest["files"].items() if _differs(folder / name, listed, thorough)
        ]
        return f"{damaged[0]} is damaged" if damaged else None
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"


def _differs(path: Path, listed: dict[str, Any], thorough: bool) -> bool:
    if path.stat().st_size != listed["size"]:
        return True
    if not thorough:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != str(listed["sha256"])


def size_of(folder: Path) -> int:
    """Bytes of everything in it."""
    return sum(path.stat().st_size for path in folder.iterdir())
