"""LoRA adapters in vLLM's words: into the engine, and out of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from service.engine.lora import Adapter
from service.engine.vllm.translate import translate
from service.errors import EngineUnavailable, InvalidValue, shown

PREFIX = "Call to add_lora method failed: "

log = logging.getLogger(__name__)


def lora_args(args: Mapping[str, Any], adapters: int) -> dict[str, Any]:
    """Engine arguments with a slot for each of so many adapters, or for as many as the operator says.

    With fewer slots than adapters vLLM moves them about. One that is loaded may take the slot of one in use,
    whose answers then go on with another's weights. And one that has lost its place in memory is read again
    in the middle of a step, which ends the engine if its files are gone.

    Raises:
        ValueError: the operator has switched off what the adapters need.
    """
    if args.get("enable_lora") is False:
        raise ValueError("enable_lora is false, but TWOPHASE_LORA or TWOPHASE_LORA_FOLDER is set")
    slots = (args.get("max_loras") or adapters) + _unused_slots()
    places = max(slots, args.get("max_cpu_loras") or 0)
    return {"enable_lora": True, "max_loras": slots, "max_cpu_loras": places}


def most_adapters(config: LoRAConfig | None) -> int:
    """How many an engine can have: never more than slots for them."""
    return 0 if config is None else max(0, config.max_loras - _unused_slots())


def _unused_slots() -> int:
    """On a CPU the last slot stays empty: vLLM takes it for requests that use no adapter."""
    return int(current_platform.is_cpu())


def lora_request(adapter: Adapter) -> LoRARequest:
    """vLLM compares them by name, in sets and in the hashes of cached prefixes: it has to be unique."""
    return LoRARequest(adapter.identity, adapter.number, str(adapter.folder))


async def load(llm: AsyncLLM, adapter: Adapter) -> None:
    """Have the engine read an adapter.

    Raises:
        InvalidValue: it cannot use it. EngineUnavailable: it has died.
    """
    try:
        loaded = await llm.add_lora(lora_request(adapter))
    except Exception as exc:
        error = translate(exc)
        if isinstance(error, EngineUnavailable):
            raise error from exc
        log.warning("adapter %s could not be loaded from %s: %s", adapter.name, adapter.folder, exc)
        await _forget(llm, adapter)
        raise InvalidValue(_sentence(exc, adapter), param="lora_path") from exc
    if not loaded:
        await _forget(llm, adapter)
        raise InvalidValue("The engine did not take this adapter.", param="lora_path")


async def unload(llm: AsyncLLM, adapter: Adapter) -> None:
    """Have the engine forget an adapter that no request uses any more.

    Raises:
        EngineUnavailable, InternalFault.
    """
    try:
        await llm.remove_lora(adapter.number)
    except Exception as exc:
        raise translate(exc) from exc


async def _forget(llm: AsyncLLM, adapter: Adapter) -> None:
    """A load that failed half way may have left its number behind."""
    with contextlib.suppress(Exception):
        await llm.remove_lora(adapter.number)


def _sentence(exc: Exception, adapter: Adapter) -> str:
    """The engine's reason, without the path: whoever asked may not know where adapters lie."""
    reason = " ".join(str(exc).split()).removeprefix(PREFIX).replace(str(adapter.folder), "its folder")
    remedy = " The operator raises it in TWOPHASE_ENGINE_ARGS." if "max_lora_rank" in reason else ""
    return f"The engine cannot use this adapter: {shown(reason, 300)}{remedy}"
