"""README's lines for each client run as they stand and print an answer."""

from __future__ import annotations

import subprocess

import pytest

from tests.clients.conftest import KEY, PATIENCE_S, surroundings
from tests.clients.environments import environment
from tests.clients.readme import lines
from tests.real.conftest import Served

pytestmark = [pytest.mark.engine, pytest.mark.embedded, pytest.mark.clients]


@pytest.mark.parametrize(
    ("client", "telling"),
    [
        ("anthropic", "import Anthropic"),
        ("langchain", "import ChatOpenAI"),
        ("litellm", "import litellm"),
        ("pydantic_ai", "import Agent"),
        ("instructor", "import instructor"),
    ],
)
def test_the_lines_for_a_client_print_an_answer(client: str, telling: str, service: Served) -> None:
    command = [str(environment(client) / "python"), "-P", "-c", lines("python", telling, service.url, KEY)]
    done = subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()
