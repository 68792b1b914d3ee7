"""What the engine is given where the operator does not say."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from vllm.platforms import current_platform

from service.engine.embedded import cpu_dtype
from service.engine.vllm.arguments import engine_args


@pytest.mark.parametrize(
    ("machine", "amx", "bf16", "dtype"),
    [
        ("x86_64", True, True, "float16"),
        ("x86_64", False, True, "bfloat16"),
        ("x86_64", False, False, "float32"),
        ("aarch64", False, False, "bfloat16"),
    ],
)
def test_the_type_of_number_follows_what_the_cpu_can_multiply(
    monkeypatch: pytest.MonkeyPatch, machine: str, amx: bool, bf16: bool, dtype: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    assert cpu_dtype() == dtype


def test_only_the_embedded_model_on_a_cpu_is_computed_in_another_type_than_its_own(
    embedded_model: Path, tmp_path: Path
) -> None:
    ours = cpu_dtype() if current_platform.is_cpu() else "auto"
    assert engine_args(str(embedded_model), {}, None).dtype == ours
    assert engine_args(str(embedded_model), {"dtype": "bfloat16"}, None).dtype == "bfloat16"
    other = tmp_path / "other"
    other.symlink_to(embedded_model)
    assert engine_args(str(other), {}, None).dtype == "auto"
