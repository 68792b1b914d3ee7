"""A LoRA adapter: its name here, where it lies, and what has to lie there, in the files that peft writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
READ_THE_STATE = (
    ".q_proj",
    ".k_proj",
    ".v_proj",
    ".gate_proj",
    ".up_proj",
)  # of a layer
WRITE_THE_STATE = (".o_proj", ".down_proj")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
NAME_RULE = "has 1 to 64 letters, digits and . _ : / - and begins with a letter or a digit"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One load of an adapter. Another load under the same name is another adapter.

    `version` counts the loads under this name: what the engine has computed for one is wrong for the next.
    `number` is that of no other load in this process: an engine may remember one whose load has failed.
    """

    name: str
    number: int  # from 1
    folder: Path
    version: int = 1

    @property
    def identity(self) -> str:
        """A name that no other load has: the name itself for the first, which is the same in all replicas."""
        return self.name if self.version == 1 else f"{self.name}@{self.version}"


def folder_fault(folder: Path) -> str | None:
    """Why `folder` holds no adapter, without its path; None where it looks like one. Reads a small file."""
    try:
        if not (folder / CONFIG).is_file():
            return f"there is no {CONFIG}"
        if not any((folder / name).is_file() for name in WEIGHTS):
            return f"there is no {WEIGHTS[0]}"
        config = json.loads((folder / CONFIG).read_bytes())
    except OSError as exc:
        return f"it cannot be read: {exc.strerror}"
    except ValueError:
        return f"{CONFIG} is no JSON"
    if not isinstance(config, dict) or not isinstance(config.get("r"), int):
        return f"{CONFIG} names no rank (r)"
    return None


def weights_fault(folder: Path, width: int | None) -> str | None:
    """Why the weights do not fit a model of this width (its `hidden_size`), where that can be seen.

    An engine may take narrower ones without a word, and answer nonsense.
    """
    path = folder / WEIGHTS[0]
    if width is None or not path.is_file():
        return None
    try:
        with safe_open(path, "np") as weights:
            widths = {found for name in weights.offset_keys() if (found := _width(weights, name)) is not None}
    except (OSError, SafetensorError):
        return f"{WEIGHTS[0]} is damaged"
    if not widths or width in widths:
        return None
    return f"it was made for a model {min(widths)} wide, and this one is {width}"


def _width(weights: Any, name: str) -> int | None:
    """The width of the model that a tensor was made for, told by its place in a layer."""
    module, _, part = name.removesuffix(".weight").rpartition(".")
    if part == "lora_A" and module.endswith(READ_THE_STATE):
        return int(weights.get_slice(name).get_shape()[-1])
    if part == "lora_B" and module.endswith(WRITE_THE_STATE):
        return int(weights.get_slice(name).get_shape()[0])
    return None
