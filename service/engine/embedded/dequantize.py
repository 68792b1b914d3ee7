"""The conversion itself, a program: `python -m service.engine.embedded.dequantize GGUF FOLDER`.

Nothing imports this module: of the embedded model, only it loads torch and transformers. The folder it fills
counts for nothing until the parent has sealed it, so it may be killed at any moment.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from service.engine.embedded.convert import STEP

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

END_OF_TURN = "<|im_end|>"
TURN_MARKERS = ["<|im_start|>", END_OF_TURN]
ADVISED = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}  # by the makers, on the model's page


def write_folder(gguf: Path, folder: Path) -> None:
    """Write tokenizer, configuration and bf16 weights; raises `ValueError` if they do not fit each other."""
    say("loading torch and transformers")
    import transformers  # noqa: F401  # seconds: said apart from the work

    say("unpacking the weights")
    model = read_model(gguf)
    say("reading the tokenizer")
    tokenizer = read_tokenizer(gguf, positions=model.config.max_position_embeddings)
    configure_generation(model, tokenizer)
    say("writing the folder")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def say(step: str) -> None:
    print(STEP + step, flush=True)


def read_model(gguf: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    return model


def read_tokenizer(gguf: Path, positions: int) -> PreTrainedTokenizerFast:
    """The tokenizer the model was trained with, which splits every digit off first.

    Transformers does not take that rule from the GGUF file (`tokenizer.ggml.pre`); without it, blanks before
    a number and digits of other scripts become other tokens.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    cuts = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    read.backend_tokenizer.pre_tokenizer = cuts
    return PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer,
        bos_token=read.bos_token,
        eos_token=read.eos_token,
        unk_token=read.unk_token,
        pad_token=read.pad_token,
        additional_special_tokens=TURN_MARKERS,
        chat_template=read.chat_template,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )


def configure_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Generation ends at the end of a turn, and tokens are chosen as the model's makers advise.

    Raises `ValueError` if model and tokenizer disagree.
    """
    from transformers import GenerationConfig

    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    if not tokenizer.eos_token_id == model.config.eos_token_id == end:
        raise ValueError(f"the model ends at token {model.config.eos_token_id}, but {END_OF_TURN} is {end}")
    if len(tokenizer) != model.config.vocab_size:
        raise ValueError(f"{len(tokenizer)} tokens, but {model.config.vocab_size} embeddings")
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=end, pad_token_id=tokenizer.pad_token_id, **ADVISED
    )


def end_with_parent() -> None:
    """The parent holds the other end of standard input: when that closes, nobody waits for this work."""
    os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when the interpreter ends
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
