"""Folders that look like LoRA adapters: enough for a scripted engine, which reads none."""

from __future__ import annotations

import json
from pathlib import Path


def adapter_folder(folder: Path, **config: object) -> Path:
    """A folder with the files of an adapter; `config` changes what its configuration says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder
