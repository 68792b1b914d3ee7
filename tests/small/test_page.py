"""The playground on the real engine, with tenants: the key, the real figures, and a prompt without end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import chromium, visit
from tests.real.conftest import Served
from tests.small.conftest import KEYS

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended with the module: its loop would be in the way of tests that are coroutines."""
    with chromium() as browser:
        yield browser


def test_a_key_is_asked_for_kept_in_the_tab_and_never_shown(browser: Browser, small: Served) -> None:
    with visit(browser, small.url) as seen:
        dialog = seen.page.get_by_role("dialog")
        expect(dialog).to_contain_text("This service needs a key")
        seen.page.keyboard.type("nobodys-key")
        seen.page.keyboard.press("Enter")
        expect(dialog).to_be_visible()
        expect(seen.trouble).to_contain_text("This API key is not known here.")
        seen.page.get_by_label("API key").fill(KEYS["a"])
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator("#model")).to_contain_text("1,024 tokens")
        expect(dialog).to_be_hidden()
        seen.setting("Output limit").fill("40")
        seen.ask("Name three rivers.")
        expect(seen.timings).to_have_count(1)
        seen.button("curl").click()
        command = seen.page.locator("#command").text_content() or ""
        assert "$OPENAI_API_KEY" in command and KEYS["a"] not in command
        seen.page.keyboard.press("Escape")
        seen.page.reload()
        expect(seen.page.locator("#model")).to_contain_text("1,024 tokens")
        assert KEYS["a"] not in seen.page.content()
        kept = seen.page.evaluate("JSON.stringify(localStorage)")
        assert KEYS["a"] not in kept
        assert KEYS["a"] in seen.page.evaluate("JSON.stringify(sessionStorage)")


def test_the_real_phases_add_up_on_the_page(browser: Browser, small: Served) -> None:
    with visit(browser, small.url) as seen:
        seen.page.evaluate(f"sessionStorage.setItem('twophase-key', '{KEYS['a']}')")
        seen.page.reload()
        seen.setting("Output limit").fill("120")
        seen.ask("Tell a story.")
        expect(seen.timings).to_have_count(1)
        rows = seen.timings.locator("tr[data-phase]").all()
        times = {
            row.get_attribute("data-phase"): float(row.get_attribute("data-ms") or "nan") for row in rows
        }
        total = float(seen.timings.locator("tr.total").get_attribute("data-ms") or "nan")
        assert abs(sum(times.values()) - total) < 0.01, times
        assert times["prefill"] > 0 and times["decode"] > 0
        expect(seen.page.locator("#capacity")).to_contain_text("of its kind fit now")


def test_streaming_costs_the_real_engine_no_more(browser: Browser, small: Served) -> None:
    with visit(browser, small.url) as seen:
        seen.page.evaluate(f"sessionStorage.setItem('twophase-key', '{KEYS['a']}')")
        seen.page.reload()
        seen.setting("Output limit").fill("300")
        seen.draft.fill("Tell a story.")
        seen.button("Compare").click()
        pair = seen.page.get_by_role("region", name="Streaming off and on")
        expect(pair.locator(".outcome")).to_contain_text("the work is the same")
        off, on = pair.locator(".sample").all_text_contents()
        assert off and on
