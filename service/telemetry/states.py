"""What is so at the moment, looked up and shown at each scrape: gauges without labels."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from service.telemetry.families import gauge

STATES: Mapping[str, str] = {
    "ready": "1 while requests are taken",
    "draining": "1 while the service is going down",
    "kv_reserved_tokens": "Cache tokens that admitted requests may still come to need",
    "kv_capacity_tokens": "Tokens that the engine's key-value cache holds",
    "kv_overcommit_ratio": "How many times the key-value cache may be reserved, "
    "as few answers become as long as they may",
    "slots": "Answers that may be in the engine at once",
    "slots_held": "Slots that answers hold",
    "piece_cache_bytes": "Memory of prompt pieces that are already tokenized",
    "prompt_memory_bytes": "Memory of what was sent before, as token ids",
}


class States:
    """The gauges of `STATES`, each as `twophase_` and its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {name: gauge(registry, f"twophase_{name}", text) for name, text in STATES.items()}

    def show(self, **values: float) -> None:
        """Set some of them, by name."""
        for name, value in values.items():
            self._gauges[name].set(value)
