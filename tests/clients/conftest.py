"""The service as an operator starts it, with the embedded model, and clients that talk to it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import environment
from tests.real.conftest import Served, serving

KEY, KEY_FOR_ONE_AT_ONCE = "key-of-many", "key-of-one-at-once"
TALKS = Path(__file__).parent / "talks"
PATIENCE_S = 240

Said = dict[str, Any]


def tenant(name: str, key: str, **limits: int) -> str:
    """A table of the tenants file."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    lines = [f'name = "{name}"', f'key_sha256 = ["{digest}"]', *(f"{k} = {v}" for k, v in limits.items())]
    return "\n".join(["[[tenant]]", *lines, ""])


@pytest.fixture(scope="package")
def service(embedded_model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all clients. Nobody is refused here for being slow on a busy machine."""
    tenants = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    tenants.write_text(tenant("many", KEY) + tenant("one", KEY_FOR_ONE_AT_ONCE, max_concurrent=1))
    with serving(
        TWOPHASE_CACHE=str(cache), TWOPHASE_TENANTS_FILE=str(tenants), TWOPHASE_SLO_TTFT_MS="600000"
    ) as served:
        yield served


@pytest.fixture(scope="module")
def listen(service: Served) -> Callable[[str], Said]:
    """Let a client talk to the service in an environment of its own; what it says of that."""

    def listen(client: str) -> Said:
        python = environment(client) / "python"
        command = [
            str(python),
            "-P",
            str(TALKS / f"ask_{client}.py"),
            f"{service.url}/v1",
            KEY,
            KEY_FOR_ONE_AT_ONCE,
        ]
        done = subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr[-4000:]
        said: Said = json.loads(done.stdout.splitlines()[-1])
        return said

    return listen


def surroundings() -> dict[str, str]:
    """Our environment without what clients would take for their own settings."""
    foreign = (
        "ANTHROPIC_",
        "OPENAI_",
        "LANGCHAIN_",
        "LANGSMITH_",
        "LITELLM_",
        "PYTHON",
        "TWOPHASE_",
        "VIRTUAL_ENV",
    )
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
