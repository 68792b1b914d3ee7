"""Models for the prompt tests: the embedded one and four published ones, with their own templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from transformers import AutoTokenizer

from service.prompt import Prompt, Renderer, RenderOptions
from tests.prompt.published import PUBLISHED, published

# Results are judged, not how busy the machine is.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@dataclass(frozen=True)
class Model:
    """One model twice: as transformers sees it, and as we do."""

    name: str
    tokenizer: Any
    renderer: Renderer

    def prompt(self, messages: Sequence[dict[str, Any]], **options: Any) -> Prompt:
        return self.renderer.render_blocking(messages, RenderOptions(**options))

    def reference(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        """What transformers makes of the same conversation."""
        options = {"add_generation_prompt": True, **options}
        ids: list[int] = self.tokenizer.apply_chat_template(messages, return_dict=False, **options)
        return ids

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


Load = Callable[[str], Model]


@pytest.fixture(scope="session")
def load(request: pytest.FixtureRequest) -> Load:
    """Loads a model by name, each only once."""

    @cache
    def load(name: str) -> Model:
        folder = request.getfixturevalue("embedded_model") if name == "smollm2" else published(name)
        return Model(name, AutoTokenizer.from_pretrained(folder), Renderer.load(str(folder)))

    return load


@pytest.fixture(scope="session", params=["smollm2", *PUBLISHED])
def model(request: pytest.FixtureRequest, load: Load) -> Model:
    """Each of the models, one after the other."""
    return load(request.param)


@pytest.fixture(scope="session")
def smollm2(load: Load) -> Model:
    """The embedded model."""
    return load("smollm2")


@pytest.fixture(scope="session")
def qwen3(load: Load) -> Model:
    """A model whose template does a good deal: tools, tool results in user turns, reasoning taken out."""
    return load("qwen3")


@pytest.fixture(scope="session")
def deepseek(load: Load) -> Model:
    """A model whose turn markers are not "special" tokens, and whose template wants arguments as text."""
    return load("deepseek-v3")
