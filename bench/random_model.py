"""A one-layer random Llama: nonsense as text, real as a model, and so quick that the front end shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from service.engine.embedded import prepare

VOCABULARY = 49_152  # as many as the tokenizer has
HIDDEN = 64
HEADS = 1  # of 64: the CPU attention kernels know no smaller head than 32
THINKING = {"<think>": 3, "</think>": 4}  # control tokens of the tokenizer that nothing else uses
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)


def make(folder: Path, cache: Path, context_window: int = 8192, vocabulary: int = VOCABULARY) -> Path:
    """Write the model into `folder`, with the embedded model's tokenizer and chat template."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = prepare(cache).path
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=context_window,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            name: tensor.contiguous()
            for name, tensor in model.state_dict().items()
            if name != "lm_head.weight"
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    written = {**config.to_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(written, indent=1))
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    return folder


def name_marks(folder: Path) -> None:
    """Give two control tokens of the model's tokenizer the names that mark thinking."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    names = {token["id"]: token["content"] for token in added}
    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        text = file.read_text()
        for mark, token_id in THINKING.items():
            text = text.replace(json.dumps(names[token_id]), json.dumps(mark))
        file.write_text(text)
