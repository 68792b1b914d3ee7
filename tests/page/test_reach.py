"""Everybody can use the page: by keyboard, on a phone, in the dark, by ear."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import PHONE, Visit, visit
from tests.scripted import ScriptedEngine
from tests.serving import Running

Scheme = Literal["light", "dark"]

# The lowest contrast of any visible text against what is behind it, after the WCAG's formula.
LOWEST_CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility({ visibilityProperty: true })) continue;
    const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 120)]);
  }
  return found.sort(([a], [b]) => a - b)[0];
}"""


def answered(seen: Visit, engine: ScriptedEngine) -> None:
    """With an answer and an error on the page."""
    engine.script("Rhine", 0.05, " Danube")
    seen.ask("Name two rivers.")
    expect(seen.timings).to_have_count(1)
    seen.page.context.set_offline(True)
    seen.ask("And lakes?")
    expect(seen.trouble).to_be_visible()


def test_the_keyboard_alone_is_enough(seen: Visit, engine: ScriptedEngine) -> None:
    keyboard, page = seen.page.keyboard, seen.page
    expect(seen.draft).to_be_focused()
    keyboard.type("Name three")
    keyboard.press("Shift+Enter")
    keyboard.type("rivers.")
    engine.script("Rhine", 30.0)
    keyboard.press("Enter")
    expect(seen.answers).to_have_text("Rhine")
    keyboard.press("Escape")
    expect(seen.timings).to_have_count(1)
    assert "Name three\nrivers." in (page.locator(".turn.user").text_content() or "")
    expect(seen.draft).to_be_focused()
    reached = []
    for _ in range(12):
        keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert {"send", "compare", "system", "maxTokens", "temperature", "truncation", "tools"} <= set(reached)
    seen.draft.focus()
    for _ in range(12):
        keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") == "curl":
            break
    keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#curl")).to_be_focused()


def test_what_happens_is_said_to_those_who_listen(seen: Visit, engine: ScriptedEngine) -> None:
    said = seen.page.get_by_role("status").and_(seen.page.locator("#said"))
    engine.script("Rhine", 0.5, " Danube")
    seen.ask("Name two rivers.")
    expect(said).to_have_text("Answering")
    expect(said).to_contain_text("The answer is complete: 2 tokens")


def test_everything_that_can_be_used_has_a_name(seen: Visit, engine: ScriptedEngine) -> None:
    answered(seen, engine)
    for control in seen.page.locator("button, input, select, textarea, meter").all():
        if control.is_visible():
            assert control.evaluate(
                "node => (node.ariaLabel ?? node.labels?.[0]?.textContent ?? node.textContent).trim()"
            ), control.evaluate("node => node.outerHTML")


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, server: Running) -> None:
    with visit(browser, server.url, viewport=PHONE, has_touch=True, is_mobile=True) as seen:
        seen.draft.fill("Name " + "many " * 30 + "rivers.")
        seen.button("Send").tap()
        expect(seen.timings).to_have_count(1)
        assert seen.page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
        assert seen.page.evaluate("document.getElementById('scroll').scrollWidth") <= PHONE["width"]
        box = seen.button("Send").bounding_box()
        assert box is not None and box["height"] >= 44
        expect(seen.setting("System message")).to_be_hidden()
        seen.button("Details").tap()
        expect(seen.setting("System message")).to_be_visible()
        assert seen.page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
        seen.page.keyboard.press("Escape")
        expect(seen.setting("System message")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(
    browser: Browser, server: Running, engine: ScriptedEngine, scheme: Scheme
) -> None:
    with visit(browser, server.url, color_scheme=scheme, reduced_motion="reduce") as seen:
        answered(seen, engine)
        ratio, where = seen.page.evaluate(LOWEST_CONTRAST)
        assert ratio >= 4.5, where


def test_the_theme_follows_the_system_until_somebody_chooses(browser: Browser, server: Running) -> None:
    def paper(seen: Visit) -> str:
        return str(seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    with visit(browser, server.url, color_scheme="dark") as seen:
        dark = paper(seen)
        seen.page.emulate_media(color_scheme="light")
        light = paper(seen)
        assert light != dark
        seen.button("Use the dark theme").click()
        assert paper(seen) == dark
        seen.page.reload()
        assert paper(seen) == dark
        expect(seen.button("Use the light theme")).to_be_visible()
