"""One browser for all tests of the page, and a visit to a server over the scripted engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from service.settings import Settings
from tests.page.browser import Visit, chromium, visit
from tests.scripted import ScriptedEngine
from tests.serving import Running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended with the module: its loop would be in the way of tests that are coroutines."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def settings() -> Settings:
    """The defaults, with a short drain."""
    return Settings(drain_s=2)


@pytest.fixture
def engine() -> ScriptedEngine:
    """A cache of some size, so that the page has something to say about it."""
    return ScriptedEngine(kv_capacity_tokens=16_384)


@pytest.fixture
def seen(browser: Browser, server: Running) -> Iterator[Visit]:
    """The page on a desk."""
    with visit(browser, server.url) as seen:
        yield seen
