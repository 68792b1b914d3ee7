"""A real browser, and a visit to the page with it that must stay free of complaints and of other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.system import program

PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
# Chromium's own note on any response of 400 and above. What the page does with it is tested.
STATUS_NOTE = "Failed to load resource"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's chromium, driven by playwright, which brings none of its own."""
    path = program("chromium", package="chromium")
    expect.set_options(timeout=15_000)  # a shared machine may be slow at any moment
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@dataclass
class Visit:
    """The page as its reader sees it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    @property
    def draft(self) -> Locator:
        """Where one types."""
        return self.page.get_by_label("Your message.")

    @property
    def bar(self) -> Locator:
        return self.page.locator("#bar")

    @property
    def fault(self) -> Locator:
        """What is wrong with what is typed."""
        return self.page.locator("#fault")

    @property
    def trouble(self) -> Locator:
        """The card of an error."""
        return self.page.get_by_role("alert")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".turn.assistant .words")

    @property
    def timings(self) -> Locator:
        """What stands under the answers."""
        return self.page.get_by_role("region", name="Where the time went")

    def ask(self, text: str) -> None:
        """Type and send, by keyboard."""
        self.draft.fill(text)
        self.draft.press("Enter")

    def setting(self, label: str) -> Locator:
        """A field of the panel."""
        return self.page.get_by_label(label)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Open the page, and see at the end that nothing complained and nobody else was asked for anything."""
    options.setdefault("viewport", DESK)
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    seen = Visit(page)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: (
            seen.complaints.append(said.text)
            if said.type in ("error", "warning") and not said.text.startswith(STATUS_NOTE)
            else None
        ),
    )
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.goto(url)
    yield seen
    context.close()
    assert seen.complaints == []
    assert {host for host in seen.hosts if host} == {urlsplit(url).netloc}
