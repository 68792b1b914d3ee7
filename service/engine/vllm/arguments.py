"""The operator's engine arguments over our defaults, and what is known of an engine once it runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.version import __version__ as vllm_version

from service.engine.embedded import NAME, cpu_dtype
from service.engine.memory import folder_weights_bytes, free_bytes, kv_cache_bytes
from service.engine.protocol import EngineFacts, EngineStartError
from service.engine.vllm.adapters import lora_args, most_adapters
from service.engine.vllm.grammars import BACKEND
from service.engine.vllm.reasoning import ReasoningParser
from service.errors import shown
from service.settings import nearest

ADVISED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # never a token limit


def engine_args(
    model: str, args: Mapping[str, Any], max_model_len: int | None, adapters: int = 0
) -> AsyncEngineArgs:
    """The operator's arguments over our defaults, with room for so many LoRA adapters.

    Raises:
        EngineStartError: for an argument that vLLM does not have, or a value it does not take.
    """
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(set(args) - known):
        raise EngineStartError(
            "engine_args: "
            + "; ".join(f"{name} is no vLLM engine argument{nearest(name, known)}" for name in unknown)
        )
    chosen: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": False}
    if current_platform.is_cpu():
        chosen["max_num_seqs"] = 16  # more at once is hardly more in all, and each answer takes longer
        chosen["enforce_eager"] = True  # compiling takes minutes and gains 10 to 15 % on a CPU
        if Path(model).name == NAME:
            chosen["dtype"] = cpu_dtype()
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            chosen["kv_cache_memory_bytes"] = kv_cache_bytes(free_bytes(), folder_weights_bytes(model))
    if max_model_len is not None:
        chosen["max_model_len"] = max_model_len
    try:
        structured = {"structured_outputs_config": _structured(args.get("structured_outputs_config") or {})}
        lora = lora_args(args, adapters) if adapters else {}
        return AsyncEngineArgs(**{**chosen, **args, **lora, **structured, "model": model})
    except EngineStartError:
        raise
    except Exception as exc:
        raise EngineStartError(f"engine_args: {shown(str(exc), 400)}") from exc


def _structured(given: Mapping[str, Any]) -> StructuredOutputsConfig:
    """JSON without free white space, in which a small model can lose itself, and the backend we try with."""
    fixed = {"backend": BACKEND, "disable_any_whitespace": True}
    if changed := [name for name, value in fixed.items() if given.get(name, value) != value]:
        raise EngineStartError(
            f"engine_args: structured_outputs_config.{changed[0]} is {fixed[changed[0]]} here; leave it out"
        )
    return StructuredOutputsConfig(**{**given, **fixed})  # vLLM adds to it, and cannot to a dict


def facts_of(llm: AsyncLLM, tool_parser: str | None, reasoning: ReasoningParser | None) -> EngineFacts:
    """What is known of a started engine."""
    config = llm.vllm_config
    advised = config.model_config.get_diff_sampling_param()
    return EngineFacts(
        context_window=config.model_config.max_model_len,
        vocab_size=config.model_config.get_vocab_size(),
        kv_capacity_tokens=int(config.cache_config.kv_cache_size_tokens or 0),
        block_size=int(config.cache_config.block_size or 0),
        version=vllm_version,
        max_running=config.scheduler_config.max_num_seqs,
        reuses_prefixes=bool(config.cache_config.enable_prefix_caching),
        model_config=config.model_config.hf_text_config.to_dict(),
        kv_dtype=_kv_dtype(llm),
        sampling_defaults={name: value for name, value in advised.items() if name in ADVISED},
        tool_parser=tool_parser,
        reasons=reasoning is not None,
        reasons_in_special_tokens=reasoning is not None and not reasoning.hides_special_tokens,
        max_adapters=most_adapters(config.lora_config),
        bounds_thinking=config.reasoning_config is not None and config.reasoning_config.enabled,
    )


def _kv_dtype(llm: AsyncLLM) -> str:
    """`auto` means that keys and values are kept as the model computes them."""
    config = llm.vllm_config
    dtype = str(config.cache_config.cache_dtype)
    return str(config.model_config.dtype).removeprefix("torch.") if dtype == "auto" else dtype


def start_failure(exc: Exception) -> str:
    """Why the engine did not start, and what to change."""
    reason = shown(" ".join(str(exc).split()) or type(exc).__name__, 600)
    if "initialization failed" in reason:
        return (
            f"the engine did not start: {reason} The engine's own report stands above. When memory is short, "
            "lower TWOPHASE_MAX_MODEL_LEN, or set kv_cache_memory_bytes in TWOPHASE_ENGINE_ARGS."
        )
    return f"the engine did not start: {reason}"
