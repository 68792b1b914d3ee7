"""What the engine has to do, from the statistics it sends with every step."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from service.engine.protocol import EngineLoad


class LoadKeeper(StatLoggerBase):  # type: ignore[misc]  # vLLM is Any to mypy
    """Keeps the newest statistics and counts them. vLLM calls it for every step."""

    def __init__(self) -> None:
        self._newest: Any = None
        self.steps = 0

    def __call__(self, vllm_config: VllmConfig, engine_index: int = 0) -> LoadKeeper:
        """vLLM asks for a factory; this is its own."""
        return self

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self.steps += 1
        if scheduler_stats is not None:
            self._newest = scheduler_stats
            _in_one_order(scheduler_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def load(self, kv_capacity_tokens: int) -> EngineLoad:
        """The load as of the last step."""
        stats = self._newest
        if stats is None:
            return EngineLoad()
        return EngineLoad(
            running=stats.num_running_reqs,
            waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
            kv_used_tokens=round(stats.kv_cache_usage * kv_capacity_tokens),
        )


def _in_one_order(stats: Any) -> None:
    """vLLM's metric of adapters, written after this, makes a series of each list of names it is given.

    The lists are in the order of arrival: eight busy adapters can make 100,000 series, sorted ones 255.
    """
    for counts in (stats.waiting_lora_adapters, stats.running_lora_adapters):
        if len(counts) > 1:
            ordered = sorted(counts.items())
            counts.clear()
            counts.update(ordered)
