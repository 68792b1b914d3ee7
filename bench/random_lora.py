"""A random LoRA adapter for the one-layer model, in the files that peft writes."""

from __future__ import annotations

import json
from pathlib import Path

from bench.random_model import HIDDEN

RANK = 8


def make_lora(folder: Path, seed: int = 0, *, hidden: int = HIDDEN) -> Path:
    """Write the adapter into `folder`; it changes attention enough for other words to come out."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    tensors = {}
    for name in ("q_proj", "v_proj", "o_proj"):
        at = f"base_model.model.model.layers.0.self_attn.{name}"
        tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden)
        tensors[f"{at}.lora_B.weight"] = torch.randn(hidden, RANK)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj", "o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=1))
    return folder
