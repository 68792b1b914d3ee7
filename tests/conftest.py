"""Parts that many tests need: settings, a tokenizer with its template, engines, a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from service.engine.embedded import prepare
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.prompt.published import published
from tests.scripted import ScriptedEngine
from tests.serving import Running, running
from tests.sizes import Reference, Sized

# A shared machine may be slow at any moment; that says nothing about what is tested.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own TWOPHASE_ variables do not change what is tested."""
    for name in [name for name in os.environ if name.startswith("TWOPHASE_") and name != "TWOPHASE_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def cache() -> Path:
    """The folder of the embedded model, the operator's own, so that it is fetched once."""
    return Path(os.environ.get("TWOPHASE_CACHE", "~/.cache/twophase")).expanduser()


@pytest.fixture(scope="session")
def embedded_model(cache: Path) -> Path:
    """The folder of the real embedded model."""
    return prepare(cache, lambda line: None).path


@pytest.fixture(scope="session")
def renderer(embedded_model: Path) -> Renderer:
    """The embedded model's tokenizer and chat template."""
    return Renderer.load(str(embedded_model))


@pytest.fixture(scope="session")
def reference(embedded_model: Path) -> Reference:
    """The embedded model's tokenizer as its makers use it, to count against."""
    return Reference(embedded_model)


@pytest.fixture
def settings() -> Settings:
    """The defaults, with short times."""
    return Settings(keepalive_s=0.2, write_timeout_s=1, drain_s=2, body_timeout_s=1)


@pytest.fixture
def engine() -> ScriptedEngine:
    """An engine that does what the test writes down."""
    return ScriptedEngine()


@pytest.fixture
def server(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    """Our app on a real socket, over the scripted engine."""
    with running(settings, engine, renderer) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    """A client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def sized(renderer: Renderer) -> Iterator[tuple[Sized, Running]]:
    """An engine of any size and one server over it, for the tests of a module that ask for them."""
    engine = Sized()
    with running(Settings(), engine, renderer) as server:
        yield engine, server


Serve = Callable[..., httpx.Client]


@pytest.fixture
def serve(server: Running, engine: ScriptedEngine) -> Iterator[Serve]:
    """A client of another server over the same engine, with settings and perhaps a renderer of its own."""
    with ExitStack() as open_ones:

        def start(renderer: Renderer | None = None, **settings: Any) -> httpx.Client:
            made = running(Settings(**settings), engine, renderer or server.renderer)
            other = open_ones.enter_context(made)
            return open_ones.enter_context(other.client())

        yield start


Chat = Callable[..., httpx.Response]


@pytest.fixture
def chat(client: httpx.Client) -> Chat:
    """POST a chat request: the base body with fields replaced or added."""

    def post(**fields: object) -> httpx.Response:
        return client.post("/v1/chat/completions", json=body(**fields))

    return post


def body(**fields: object) -> dict[str, object]:
    """A small valid chat request, with fields replaced or added."""
    return {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 4, **fields}


@pytest.fixture(scope="module")
def qwen3() -> Renderer:
    """A model whose template can leave thinking out."""
    return Renderer.load(str(published("qwen3")))


@pytest.fixture(scope="module")
def thinker() -> ScriptedEngine:
    """An engine that knows how Qwen3 thinks."""
    # Not above: they bring vLLM, which most tests do without.
    from vllm.tokenizers import get_tokenizer

    from service.engine.vllm.reasoning import ReasoningParser

    engine = ScriptedEngine()
    engine.reasoning = ReasoningParser("qwen3", get_tokenizer(str(published("qwen3"))))
    engine.bounds_thinking = True
    return engine


@pytest.fixture(scope="module")
def thinks(thinker: ScriptedEngine, qwen3: Renderer) -> Iterator[httpx.Client]:
    """A client of a service whose model thinks."""
    with running(Settings(), thinker, qwen3) as server, server.client() as client:
        yield client
