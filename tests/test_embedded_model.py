"""The conversion itself, on a tiny random GGUF file, and the facts that hold for the real embedded model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from service.engine.embedded import DEFAULT_CACHE, prepare
from service.engine.embedded.convert import convert
from service.engine.embedded.source import ConversionFailed

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = [*sorted(ByteLevel.alphabet()), "ĠĠ"]
HIDDEN, INNER, HEADS, VOCABULARY = 64, 96, 4, len(SPECIAL) + len(WORDS)


def write_gguf(path: Path, *, ends_with: int = 2) -> None:
    """A Llama of one layer with random weights, in the shape of the real file."""
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer)
    add_tokenizer(writer, ends_with)
    random = np.random.default_rng(7)
    for name, shape in tensors().items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: Any) -> None:
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)


def add_tokenizer(writer: Any, ends_with: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(SPECIAL + WORDS)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * len(WORDS))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(ends_with)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")


def tensors() -> dict[str, tuple[int, ...]]:
    square = dict.fromkeys(["attn_q", "attn_k", "attn_v", "attn_output"], (HIDDEN, HIDDEN))
    ffn = {"ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER)}
    norms = dict.fromkeys(["attn_norm", "ffn_norm"], (HIDDEN,))
    layer = {f"blk.0.{name}.weight": shape for name, shape in (square | ffn | norms).items()}
    return {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)} | layer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("tiny")
    write_gguf(work / "tiny.gguf")
    (work / "model").mkdir()
    convert(work / "tiny.gguf", work / "model", lambda line: None)
    return work / "model"


def test_weights_are_bf16_safetensors_that_fit_the_configuration(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert {str(weights.dtype) for weights in model.parameters()} == {"torch.bfloat16"}
    assert model.config.vocab_size == VOCABULARY
    assert (tiny / "model.safetensors").exists()


def test_generation_ends_where_a_turn_ends(tiny: Path) -> None:
    assert GenerationConfig.from_pretrained(tiny).eos_token_id == 2


def test_tokens_are_chosen_as_the_makers_advise_where_a_request_does_not_say(tiny: Path) -> None:
    generation = GenerationConfig.from_pretrained(tiny)
    assert (generation.do_sample, generation.temperature, generation.top_p) == (True, 0.2, 0.9)


def test_every_digit_is_cut_off_before_anything_else(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


def test_the_template_comes_along(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>hi<|im_end|>"


def test_a_model_that_does_not_end_its_turns_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", ends_with=0)
    said: list[str] = []
    with pytest.raises(ConversionFailed, match="ends at token 0, but <|im_end|> is 2"):
        convert(tmp_path / "tiny.gguf", tmp_path / "model", said.append)
    assert any(line.startswith("converting the model: ") for line in said)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The real model, from the cache or made now."""
    return prepare(Path(os.environ.get("TWOPHASE_CACHE", DEFAULT_CACHE)), verify=True).path


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2, local_files_only=True)


@pytest.mark.embedded
def test_smollm2_has_8192_positions_and_49152_tokens(smollm2: Path, tokenizer: Any) -> None:
    config = AutoConfig.from_pretrained(smollm2, local_files_only=True)
    assert (config.max_position_embeddings, tokenizer.model_max_length) == (8192, 8192)
    assert (config.vocab_size, len(tokenizer)) == (49152, 49152)


@pytest.mark.embedded
def test_smollm2_ends_at_im_end(smollm2: Path, tokenizer: Any) -> None:
    config = AutoConfig.from_pretrained(smollm2, local_files_only=True)
    generation = GenerationConfig.from_pretrained(smollm2, local_files_only=True)
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert (tokenizer.eos_token_id, config.eos_token_id, generation.eos_token_id) == (2, 2, 2)


@pytest.mark.embedded
@pytest.mark.parametrize("text", [*SPECIAL, "<repo_name>", "<file_sep>", "<jupyter_start>", "<empty_output>"])
def test_smollm2_control_tokens_are_one_token_and_not_shown(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(f"a{text}b", add_special_tokens=False)
    assert len(ids) == 3
    assert tokenizer.added_tokens_decoder[ids[1]].special
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"


@pytest.mark.embedded
def test_smollm2_has_chatml_with_its_own_system_prompt(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.embedded
def test_smollm2_encodes_in_batches_what_it_encodes_alone(tokenizer: Any) -> None:
    texts = ["Hello", "x =  12\n", "naïve 日本 🙂", ""]
    batch = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    assert [entry.ids for entry in batch] == [
        tokenizer.encode(text, add_special_tokens=False) for text in texts
    ]


@pytest.mark.embedded
@pytest.mark.parametrize(
    "text", ["  two  spaces\n\n", "naïve 日本語 🙂", "def f():\n\treturn 3.14", "²³ ٣ 五"]
)
def test_smollm2_gives_back_every_text(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.embedded
def test_smollm2_knows_the_capital_of_france(smollm2: Path, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model = AutoModelForCausalLM.from_pretrained(smollm2, local_files_only=True)
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0][prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
