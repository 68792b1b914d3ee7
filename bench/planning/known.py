"""Models and machines by name. Rates of GPUs are their makers' figures times what is usually reached of them,
0.8 of the bandwidth and 0.5 of the dense 16 bit arithmetic: assumed here, not measured."""

from __future__ import annotations

from typing import Any

from bench.planning.shape import Machine, Model

REACHED_OF_BANDWIDTH, REACHED_OF_ARITHMETIC = 0.8, 0.5
STEP_S, SEQUENCE_S, OVERLAP = 0.002, 20e-6, 0.5


def _gpu(name: str, tb_per_s: float, tflops: float, gb: float) -> Machine:
    return Machine(
        name,
        tb_per_s * 1e12 * REACHED_OF_BANDWIDTH,
        tflops * 1e12 * REACHED_OF_ARITHMETIC,
        gb * 1e9,
        OVERLAP,
        STEP_S,
        SEQUENCE_S,
    )


def _llama(layers: int, hidden: int, heads: int, feed: int, vocabulary: int, tied: bool = False) -> Any:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": feed,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
    }


MACHINES = {
    machine.name: machine
    for machine in (
        _gpu("l4", 0.3, 121, 24),
        _gpu("a100-80gb", 2.04, 312, 80),
        _gpu("h100", 3.35, 989, 80),
        _gpu("h200", 4.8, 989, 141),
    )
}
MODELS = {
    "llama-3.1-8b": Model.of("llama-3.1-8b", _llama(32, 4096, 32, 14336, 128256)),
    "qwen3-4b": Model.of("qwen3-4b", _llama(36, 2560, 32, 9728, 151936, tied=True)),
    "qwen3-32b": Model.of("qwen3-32b", _llama(64, 5120, 64, 25600, 151936)),
}
SMOLLM2 = Model.of(
    "smollm2-135m",
    {**_llama(30, 576, 9, 1536, 49152, tied=True), "num_key_value_heads": 3, "head_dim": 64},
)
