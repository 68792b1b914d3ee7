"""Which type of number the embedded model is computed in on a CPU."""

from __future__ import annotations

import platform

X86 = ("x86_64", "AMD64")


def cpu_dtype() -> str:
    """The type in which this CPU does a small bfloat16 model, such as the embedded one, rightly and fast.

    With AMX, vLLM 0.32 attends in bfloat16 by a way of its own, and on one kind of machine that came out as
    nonsense, from vLLM alone too; float16 goes other CPUs' way. Where an x86 CPU has no bfloat16 instruction,
    each product is emulated: float32 takes twice the memory and reads a prompt in a third of the time.
    """
    import torch  # takes seconds, which only those pay who ask

    if torch.cpu._is_amx_tile_supported():
        return "float16"
    if platform.machine() in X86 and not torch.cpu._is_avx512_bf16_supported():
        return "float32"
    return "bfloat16"
