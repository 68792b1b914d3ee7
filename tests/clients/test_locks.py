"""The clients' locks, without a network: they are what `environments.py` asks for."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from tests.clients.environments import CLIENTS, LOCKS


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lock_has_the_version_that_is_asked_for_and_pins_everything(client: str) -> None:
    lock = [line for line in (LOCKS / f"{client}.txt").read_text().splitlines() if not line.startswith("#")]
    for wanted in map(Requirement, CLIENTS[client].splitlines()):
        assert f"{wanted.name}{wanted.specifier}" in lock
    assert all("==" in line for line in lock)


def test_every_lock_is_of_a_client() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == set(CLIENTS)
