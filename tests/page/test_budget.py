"""The budget bar in a real browser: it fills while one types, and refuses before the service has to."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import expect

from tests.page.browser import Visit
from tests.scripted import ScriptedEngine

WINDOW = 1024


def parts(seen: Visit) -> dict[str, int]:
    """The bar's parts in tokens."""
    found = seen.bar.locator(".part").all()
    return {
        (part.get_attribute("class") or "").split()[-1]: int(part.get_attribute("data-tokens") or "0")
        for part in found
    }


def test_the_bar_fills_as_one_types_and_its_parts_are_the_window(seen: Visit, client: httpx.Client) -> None:
    system = "You know every river of the world."
    count = client.post("/tokenize", json={"prompt": system}).json()["count"]
    expect(seen.page.locator("#budget-line")).to_have_text("1,024 tokens of context, all free")
    seen.setting("Output limit").fill("100")
    seen.setting("System message").fill(system)
    seen.draft.press_sequentially("Name three rivers.")
    expect(seen.page.locator("#budget-line")).to_contain_text("100 out")
    expect(seen.bar.locator(".content")).to_be_visible()
    few = parts(seen)
    assert sum(few.values()) == WINDOW and few["output"] == 100 and few["system"] == count, few
    seen.draft.press_sequentially(" And three lakes, and three mountains.")
    expect(seen.bar.locator(".content")).not_to_have_attribute("data-tokens", str(few["content"]))
    more = parts(seen)
    assert sum(more.values()) == WINDOW and more["content"] > few["content"], more
    assert more["system"] == few["system"]


def test_what_this_conversation_takes_of_the_cache_is_said(seen: Visit) -> None:
    seen.draft.fill("Name three rivers.")
    capacity = seen.page.locator("#capacity")
    expect(capacity).to_contain_text(re.compile(r"\d+ of its kind fit now, \d+ on an idle engine"))
    expect(capacity).to_contain_text("of 16,384 tokens of cache in use")


def test_a_prompt_over_the_window_is_refused_before_it_is_sent(seen: Visit, engine: ScriptedEngine) -> None:
    seen.draft.fill("word " * 2000)
    expect(seen.bar).to_have_class("refused")
    expect(seen.fault).to_contain_text("This model's maximum context length is 1024 tokens")
    expect(seen.page.locator("#said")).to_contain_text("This cannot be sent.")
    seen.draft.press("Enter")
    expect(seen.answers).to_have_count(0)
    assert engine.started == []
    seen.draft.fill("word")
    expect(seen.bar).not_to_have_class("refused")
    expect(seen.fault).to_be_empty()


def test_turns_that_would_be_left_out_are_marked(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine")
    seen.ask("river " * 300)
    expect(seen.timings).to_have_count(1)
    seen.setting("Output limit").fill("100")
    seen.draft.fill("lake " * 800)
    expect(seen.bar).to_have_class("refused")
    seen.button("Let the oldest turns go").click()
    expect(seen.page.locator("#turn-0")).to_have_class(re.compile("left-out"))
    expect(seen.page.locator("#turn-1")).to_have_class(re.compile("left-out"))
    expect(seen.page.locator("#budget-line")).to_contain_text("2 old messages left out")
    seen.draft.press("Enter")
    expect(seen.timings).to_have_count(2)
    expect(seen.timings.last).to_contain_text("2 old messages left out")


def test_tool_definitions_that_are_no_json_are_said_and_not_sent(seen: Visit, engine: ScriptedEngine) -> None:
    seen.setting("Tool definitions").fill('[{"type": ')
    seen.draft.fill("Name three rivers.")
    expect(seen.fault).to_contain_text("no JSON yet")
    seen.draft.press("Enter")
    expect(seen.answers).to_have_count(0)
    assert engine.started == []
