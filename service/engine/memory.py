"""How much memory the KV cache gets on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import psutil

SHARE = 0.4  # of what is free beside the weights; the rest is for activations and for other programs
LEAST_BYTES = 256 * 2**20
MOST_BYTES = 64 * 2**30


def kv_cache_bytes(free_bytes: int, weights_bytes: int) -> int:
    """Bytes for the KV cache, from what is free before the weights are loaded.

    Weights count one and a half times: while they are loaded, parts of them are there twice.
    """
    room = free_bytes - weights_bytes * 3 // 2
    return max(LEAST_BYTES, min(MOST_BYTES, int(room * SHARE)))


def free_bytes() -> int:
    """Memory this process may still take: the machine's, or its container's where that is less."""
    return min(psutil.virtual_memory().available, _container_free_bytes())


def folder_weights_bytes(model: str) -> int:
    """Size of the weight files in a local model folder; 0 for a model that is not on the disk yet."""
    folder = Path(model)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")] if folder.is_dir() else []
    return sum(file.stat().st_size for file in files)


def _container_free_bytes() -> int:
    limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return 2**62
