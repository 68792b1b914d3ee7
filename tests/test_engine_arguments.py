"""What the engine is given where the operator does not say."""

from __future__ import annotations

from pathlib import Path

import torch
from vllm.platforms import current_platform

from service.engine.vllm.arguments import engine_args


def test_only_the_embedded_model_leaves_bfloat16_and_only_where_the_cpu_has_amx(
    embedded_model: Path, tmp_path: Path
) -> None:
    has_amx = current_platform.is_cpu() and torch.cpu._is_amx_tile_supported()
    assert engine_args(str(embedded_model), {}, None).dtype == ("float16" if has_amx else "auto")
    assert engine_args(str(embedded_model), {"dtype": "bfloat16"}, None).dtype == "bfloat16"
    other = tmp_path / "other"
    other.symlink_to(embedded_model)
    assert engine_args(str(other), {}, None).dtype == "auto"
