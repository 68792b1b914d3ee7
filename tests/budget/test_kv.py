"""What a position costs in the cache, from configurations as model folders hold them."""

from __future__ import annotations

from typing import Any

import pytest

from service.budget.kv import KvCost, kv_cost

GROUPED = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "dtype": "float16",
}


def cost(**changes: Any) -> KvCost:
    found = kv_cost({**GROUPED, **changes})
    assert found is not None
    return found


def test_the_worked_example_comes_out_to_the_byte() -> None:
    assert cost().bytes_for(1_200) == 157_286_400
    assert cost().approximate is None


def test_without_grouping_every_head_keeps_its_own() -> None:
    assert cost(num_key_value_heads=None).bytes_per_token == 4 * cost().bytes_per_token


def test_multi_query_attention_has_one_head_to_keep() -> None:
    gpt_bigcode = {"n_layer": 24, "n_head": 16, "n_embd": 2048, "multi_query": True, "dtype": "bfloat16"}
    assert kv_cost(gpt_bigcode) == KvCost(2 * 24 * 1 * 128 * 2)
    falcon = {**GROUPED, "num_key_value_heads": None, "num_kv_heads": 8, "multi_query": True}
    assert kv_cost(falcon) == KvCost(2 * 32 * 1 * 128 * 2)
    assert kv_cost({**falcon, "new_decoder_architecture": True}) == cost()


def test_head_size_follows_from_the_width_where_it_is_not_stated() -> None:
    assert cost(head_dim=None).bytes_per_token == cost().bytes_per_token


@pytest.mark.parametrize(
    ("kv_dtype", "halves"), [("fp8", 1), ("fp8_e4m3", 1), ("bfloat16", 2), ("float32", 4), ("auto", 2)]
)
def test_the_engine_s_number_format_decides_the_width(kv_dtype: str, halves: int) -> None:
    found = kv_cost(GROUPED, kv_dtype)
    assert found == KvCost(2 * 32 * 8 * 128 * halves)


def test_a_format_nobody_knows_is_an_assumption_and_said_to_be_one() -> None:
    for found in (kv_cost(GROUPED, "int4_per_token_head"), cost(dtype=None)):
        assert found is not None
        assert found.bytes_per_token == cost().bytes_per_token
        assert found.approximate is not None
        assert "two bytes" in found.approximate


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    deepseek_v3 = {
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "head_dim": 64,
        "hidden_size": 7168,
        "dtype": "bfloat16",
    }
    found = kv_cost(deepseek_v3)
    assert found is not None
    assert found.bytes_per_token == 61 * (512 + 64) * 2
    assert "latent" in str(found.approximate)


def test_a_text_model_inside_a_larger_one_is_found() -> None:
    nested = {
        "text_config": {**GROUPED, "dtype": None},
        "dtype": "bfloat16",
        "vision_config": {"num_layers": 3},
    }
    assert kv_cost(nested) == cost()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sliding_window": 4096}, "4096 positions"),
        ({"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}, "sliding_attention"),
        ({"layer_types": ["chunked_attention"] * 3 + ["full_attention"]}, "chunked_attention"),
        ({"mamba_d_state": 128}, "state of fixed size"),
    ],
)
def test_layers_that_stop_growing_are_counted_in_full_and_said_to_be(
    changes: dict[str, Any], reason: str
) -> None:
    layers = len(changes.get("layer_types", range(32)))
    assert cost(**changes).bytes_per_token == 2 * layers * 8 * 128 * 2
    assert reason in str(cost(**changes).approximate)


def test_a_sliding_window_that_is_switched_off_changes_nothing() -> None:
    assert cost(sliding_window=4096, use_sliding_window=False) == cost()
    assert cost(sliding_window=None, layer_types=["full_attention"] * 32) == cost()


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8}, 8),
        ({"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]}, 1),
        ({"layers_block_type": ["linear_attention", "hybrid"] * 4}, 4),
        ({"layer_types": ["conv", "full_attention", "conv"]}, 1),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 4),
        ({"attn_layer_indices": [9, 18, 27]}, 3),
    ],
)
def test_layers_without_attention_are_not_counted_and_said_not_to_be(
    changes: dict[str, Any], layers: int
) -> None:
    assert cost(**changes).bytes_per_token == 2 * layers * 8 * 128 * 2
    assert "not counted" in str(cost(**changes).approximate)


def test_layers_that_read_another_s_cache_keep_none() -> None:
    shared = cost(layer_types=["full_attention"] * 30, num_kv_shared_layers=10)
    assert shared == KvCost(2 * 20 * 8 * 128 * 2)


@pytest.mark.parametrize(
    "config",
    [{}, {"num_hidden_layers": 32}, {"num_hidden_layers": 32, "num_kv_heads": [4, 8], "head_dim": 64}],
)
def test_a_configuration_that_does_not_tell_gives_no_figure(config: dict[str, Any]) -> None:
    assert kv_cost(config) is None
