"""How tokens are chosen where a request does not say: as the model's makers advise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from service.engine.protocol import EngineFacts
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import running

CHAT = "/v1/chat/completions"


class Advised(ScriptedEngine):
    """The makers of its model advise something."""

    @property
    def facts(self) -> EngineFacts:
        return replace(super().facts, sampling_defaults={"temperature": 0.2, "top_p": 0.9})


@pytest.fixture
def engine() -> Advised:
    return Advised()


@pytest.fixture
def client(settings: Settings, engine: Advised, renderer: Renderer) -> Iterator[httpx.Client]:
    with running(settings, engine, renderer) as server, server.client() as client:
        yield client


def test_a_request_without_a_temperature_gets_the_advised_one(client: httpx.Client, engine: Advised) -> None:
    for fields in ({}, {"temperature": None, "top_p": None}):
        assert client.post(CHAT, json=body(**fields)).status_code == 200
    assert [(work.sampling.temperature, work.sampling.top_p) for work in engine.started] == [(0.2, 0.9)] * 2


def test_what_a_request_says_counts_also_where_it_says_none(client: httpx.Client, engine: Advised) -> None:
    assert client.post(CHAT, json=body(temperature=0)).status_code == 200
    assert client.post(CHAT, json=body(temperature=1.5, top_p=1)).status_code == 200
    assert [(work.sampling.temperature, work.sampling.top_p) for work in engine.started] == [
        (0, 0.9),
        (1.5, 1),
    ]
