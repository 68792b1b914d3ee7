"""Service, engine, Prometheus and a collector of spans, all running, and what a load has left in them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx

from bench.random_model import make
from tests.grafana.load import Seen, load
from tests.grafana.prometheus import Prometheus, prometheus_over
from tests.real.conftest import Served, start
from tests.telemetry.collector import GrpcCollector, grpc_collector

WINDOW = 8192
STAGE_S = 12
KEYS = ("acme-key", "beta-key")
TENANTS = """
[[tenant]]
name = "acme"
key_sha256 = ["{}"]

[[tenant]]
name = "beta"
key_sha256 = ["{}"]
requests_per_minute = 40
max_output_tokens = 500
"""
# A cache hardly larger than one window: six long answers do not fit in it together. 256 bytes are a token.
ENGINE = {"kv_cache_memory_bytes": 256 * (WINDOW + 256), "max_num_seqs": 6}


@dataclass
class Ground:
    """What there is to ask when the load is over."""

    url: str
    prometheus: Prometheus
    collector: GrpcCollector
    seen: Seen
    began_s: float
    ended_s: float

    def page(self) -> str:
        """The service's own metrics, as Prometheus gets them."""
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        return httpx.get(f"{self.url}/metrics", headers=accept).text


@contextmanager
def ground(cache: Path, folder: Path) -> Iterator[Ground]:
    """Everything started, loaded, and stopped at the end."""
    model = make(folder / "one-layer", cache, context_window=WINDOW)
    tenants = folder / "tenants.toml"
    tenants.write_text(TENANTS.format(*(sha256(key.encode()).hexdigest() for key in KEYS)))
    with (
        grpc_collector() as (collector, port),
        _service(model, tenants, port) as served,
        prometheus_over(served.url, folder) as prometheus,
    ):
        began_s = time.time()
        seen = asyncio.run(load(served.url, KEYS, STAGE_S))
        time.sleep(3)  # two scrapes and an evaluation of the rules
        yield Ground(served.url, prometheus, collector, seen, began_s, time.time())


@contextmanager
def _service(model: Path, tenants: Path, collector_port: int) -> Iterator[Served]:
    served = start(
        "--model",
        str(model),
        niceness="5",  # on a busy machine a caller who is late would add that to what it measures
        TWOPHASE_ENGINE_ARGS=json.dumps(ENGINE),
        TWOPHASE_MAX_INPUT_TOKENS="7000",
        TWOPHASE_MAX_OUTPUT_TOKENS="1500",
        TWOPHASE_SLO_TTFT_MS="150",
        TWOPHASE_DEADLINE_MODE="shadow",  # or late first tokens would be refused before they could be late
        TWOPHASE_MAX_RUNNING="12",  # twice what the engine runs: some wait here and some there
        TWOPHASE_MAX_WAITING="8",
        TWOPHASE_TENANTS_FILE=str(tenants),
        TWOPHASE_PUBLIC_METRICS="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector_port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_BSP_SCHEDULE_DELAY="200",
    )
    try:
        served.wait_until_ready()
        yield served
    finally:
        if served.process.poll() is None:
            served.stop(signal.SIGTERM)
        assert served.watcher is not None
        served.watcher.join(30)
