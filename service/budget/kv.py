"""What a position costs in the key-value cache, from the model's own configuration.

In every layer a position leaves a key and a value for each KV head (queries are not kept):

    bytes = 2 · layers · KV heads · head size · bytes per number

Grouped and multi-query attention have fewer KV heads than query heads. Multi-head latent attention
keeps, per layer, one compressed vector and one rotary key for all heads together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIXED_STATE = "layers without attention keep at most a state of fixed size, which is not counted"

Config = Mapping[str, Any]  # as `to_dict()` of a transformers configuration gives it


@dataclass(frozen=True, slots=True)
class KvCost:
    """Cost of the cache over all layers and, with tensor parallelism, all devices together."""

    bytes_per_token: int
    approximate: str | None = None  # why the figure is not exact, in words

    def bytes_for(self, positions: int) -> int:
        """What so many tokens take, prompt or answer alike."""
        return self.bytes_per_token * positions


def kv_cost(config: Config, kv_dtype: str = "auto") -> KvCost | None:
    """The cost for a model; None where its configuration does not tell layers and heads.

    `kv_dtype` is what the engine stores; with "auto" the model's own dtype counts.
    """
    text = config.get("text_config") or config  # models that also see or hear nest what we look for
    layers, notes = _layers_that_grow(text)
    numbers = _numbers_per_layer(text)
    if layers is None or numbers is None:
        return None
    if text.get("kv_lora_rank"):
        notes.append("latent attention is counted compressed, and an engine that expands it stores more")
    width = _width(_dtype(config) if kv_dtype == "auto" else kv_dtype)
    if width is None:
        notes.append("the size of a stored number is not known, two bytes are assumed")
    return KvCost(layers * numbers * (width or 2), "; ".join(notes) or None)


def _numbers_per_layer(text: Config) -> int | None:
    """How many numbers one position leaves in one layer."""
    if text.get("kv_lora_rank"):
        return int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
    heads = _first(text, "num_attention_heads", "n_head", "n_heads")
    kv_heads = _kv_heads(text) or heads
    size = _first(text, "head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels")
    hidden = _first(text, "hidden_size", "n_embd", "d_model")
    if size is None and hidden and heads:
        size = hidden // heads
    return 2 * kv_heads * size if kv_heads and size else None


def _kv_heads(text: Config) -> int | None:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return _first(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def _layers_that_grow(text: Config) -> tuple[int | None, list[str]]:
    """The layers that keep something for every position, and what is only nearly true about them."""
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if not kinds:
        return _layers_of_no_kind(text)
    own = kinds[: len(kinds) - (text.get("num_kv_shared_layers") or 0)]  # the last ones read others' cache
    growing = [kind for kind in own if _grows(kind)]
    bounded = sorted({kind for kind in growing if kind not in ("attention", "full_attention")})
    notes = []
    if bounded:
        notes.append(f"layers of kind {', '.join(bounded)} are counted as if each kept every position")
    if len(growing) < len(own):
        notes.append(FIXED_STATE)
    return len(growing), notes


def _layers_of_no_kind(text: Config) -> tuple[int | None, list[str]]:
    layers = _first(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    period = text.get("attn_layer_period")
    if layers and period:
        return len(range(text.get("attn_layer_offset") or 0, layers, period)), [FIXED_STATE]
    if text.get("attn_layer_indices"):
        return len(text["attn_layer_indices"]), [FIXED_STATE]
    if any(name.startswith(("mamba_", "ssm_", "lru_")) for name in text):
        return layers, ["some layers may keep a state of fixed size; all are counted as if they grew"]
    if text.get("sliding_window") and text.get("use_sliding_window") is not False:
        return layers, [f"a layer may keep the last {text['sliding_window']} positions only; all are counted"]
    return layers, []


def _grows(kind: str) -> bool:
    return kind == "hybrid" or ("attention" in kind and not kind.startswith("linear"))


def _dtype(config: Config) -> str:
    """A text part that does not say has the dtype of the whole."""
    for part in (config.get("text_config") or {}, config):
        if dtype := part.get("dtype") or part.get("torch_dtype"):
            return str(dtype).removeprefix("torch.")
    return ""


def _width(dtype: str) -> int | None:
    """Bytes per number. Formats that store scales beside their numbers have no whole answer."""
    widths = {"float32": 4, "float16": 2, "half": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
    return widths.get(dtype)


def _first(config: Config, *names: str) -> int | None:
    """The first of these that is a count; some models state a list, one entry a layer."""
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
