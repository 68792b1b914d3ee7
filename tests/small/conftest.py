"""The whole program on the one-layer model, with two slots: quick, and easily brought to its limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.random_model import make
from tests.real.conftest import Served, serving
from tests.telemetry.collector import GrpcCollector, grpc_collector

WINDOW = 1024
VOCABULARY = 49_152 + 64  # wider than the tokenizer's, as the padded ones of many models
SLOTS = 2
HEAD = (
    "{% if date is defined %}{{ '<|im_start|>date\\n' + date + '<|im_end|>\\n' }}{% endif %}"
    "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
)
KEYS = {"a": "key-of-a", "A": "key-of-capital-a", "partner": "key-of-partner", "friend": "key-of-friend"}
CACHE_SECRET = "kept from everybody"
GROUPS = {"partner": "shared", "friend": "shared"}


def tenants_file(path: Path) -> Path:
    """A file with all tenants of `KEYS`."""
    tables = [
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n'
        f'cache_group = "{GROUPS.get(name, name)}"\nrights = ["explain_text"]\n'
        for name, key in KEYS.items()
    ]
    path.write_text("\n".join(tables))
    return path


def bearer(name: str) -> dict[str, str]:
    """The headers of a tenant."""
    return {"authorization": f"Bearer {KEYS[name]}"}


def dated(model: Path) -> Path:
    """The model's chat template, which also shows a `date` and tools where it is given some."""
    path = model / "dated.jinja"
    path.write_text(HEAD + (model / "chat_template.jinja").read_text())
    return path


@pytest.fixture(scope="session")
def collector() -> Iterator[GrpcCollector]:
    """Where the service below sends its spans."""
    with grpc_collector() as (collector, _):
        yield collector


@pytest.fixture(scope="session")
def small(
    cache: Path, collector: GrpcCollector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One service for all tests here. Its text is nonsense."""
    folder = tmp_path_factory.mktemp("tenants")
    model = make(
        tmp_path_factory.mktemp("models") / "one-layer",
        cache,
        context_window=WINDOW,
        vocabulary=VOCABULARY,
    )
    with serving(
        "--model",
        str(model),
        TWOPHASE_ENGINE_ARGS=f'{{"kv_cache_memory_bytes": 33554432, "max_num_seqs": {SLOTS}}}',
        TWOPHASE_CHAT_TEMPLATE=str(dated(model)),
        TWOPHASE_MAX_N="16",
        TWOPHASE_MAX_WAITING="64",
        TWOPHASE_SLO_TTFT_MS="600000",
        TWOPHASE_TENANTS_FILE=str(tenants_file(folder / "tenants.toml")),
        TWOPHASE_CACHE_SECRET=CACHE_SECRET,
        TWOPHASE_HANG_S="3",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_BSP_SCHEDULE_DELAY="100",
    ) as served:
        yield served


@pytest.fixture(scope="session")
def web(small: Served) -> Iterator[httpx.Client]:
    """A client of it, of tenant `a`, without a limit on connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    with httpx.Client(base_url=small.url, timeout=120, limits=limits, headers=bearer("a")) as client:
        yield client
