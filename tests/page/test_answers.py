"""Asking in a real browser: the stream, its figures, stopping, errors, and what is kept."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from playwright.sync_api import Browser, expect

from service.errors import EngineUnavailable, Overloaded
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.page.browser import Visit, visit
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until


def milliseconds(seen: Visit, rows: str) -> list[float]:
    """Exact times of some rows of the waterfall."""
    found = seen.timings.last.locator(rows)
    return [float(row.get_attribute("data-ms") or "nan") for row in found.all()]


def test_an_answer_streams_in_and_its_waterfall_adds_up_to_the_total(
    seen: Visit, engine: ScriptedEngine
) -> None:
    engine.script("Rhine", 1.0, " Danube", " Elbe")
    seen.ask("Name three rivers.")
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.timings).to_have_count(0)
    expect(seen.answers).to_have_text("Rhine Danube Elbe")
    phases = milliseconds(seen, "tr[data-phase]")
    (total,) = milliseconds(seen, "tr.total")
    assert len(phases) == 6 and abs(sum(phases) - total) < 0.01
    expect(seen.timings).to_contain_text("Bound by decode")
    expect(seen.timings).to_contain_text(re.compile(r"Writing took 1\.\d\d s of 1\.\d\d s"))
    expect(seen.timings).to_contain_text(re.compile(r"2 steps × \d{3} ms"))


def test_the_pace_marks_a_stall_with_its_place(seen: Visit, engine: ScriptedEngine) -> None:
    step: list[str | float] = [0.1, "go "]
    engine.script("go ", *step * 10, 1.2, "on ", *step * 5)
    seen.ask("Go on.")
    expect(seen.timings).to_contain_text(re.compile(r"1 stall, the longest 1\.\d\d s before piece 12"))
    assert seen.timings.locator("path.stalled").get_attribute("d")


def test_the_next_request_carries_the_conversation(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine.")
    seen.ask("One river?")
    expect(seen.timings).to_have_count(1)
    before = len(engine.started[0].token_ids)
    seen.ask("One more?")
    expect(seen.timings).to_have_count(2)
    assert len(engine.started[1].token_ids) > before + 10


def test_escape_stops_the_answer_here_and_in_the_engine(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine", 60.0, " Danube")
    seen.ask("Name three rivers.")
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.button("Stop")).to_be_visible()
    seen.page.keyboard.press("Escape")
    until(lambda: engine.aborted)
    expect(seen.timings).to_contain_text("Stopped by you")
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.button("Send")).to_be_visible()


def test_an_overloaded_service_is_said_in_words_and_nothing_typed_is_lost(
    seen: Visit, engine: ScriptedEngine
) -> None:
    engine.refusal = Overloaded("The service is full; come back later.", retry_after_s=7)
    seen.ask("Name three rivers.")
    expect(seen.trouble).to_contain_text("Busy")
    expect(seen.trouble).to_contain_text("The service asks to wait 7 s.")
    expect(seen.draft).to_have_value("Name three rivers.")
    engine.refusal = None
    engine.script("Rhine")
    seen.button("Try again").click()
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.trouble).to_have_count(0)


def test_an_answer_that_breaks_keeps_what_came(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine", 0.2, EngineUnavailable("The engine has stopped."))
    seen.ask("Name three rivers.")
    expect(seen.trouble).to_contain_text("The engine has stopped.")
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.timings).to_contain_text("It broke off.")


def test_a_service_that_cannot_be_reached_is_said_in_words(seen: Visit) -> None:
    expect(seen.page.locator("#model")).to_contain_text("tokens")
    seen.page.context.set_offline(True)
    seen.ask("Name three rivers.")
    expect(seen.trouble).to_contain_text("No connection")
    expect(seen.trouble).to_contain_text("Check that the service runs")


def test_a_model_that_is_still_loading_is_waited_for(
    browser: Browser, settings: Settings, engine: ScriptedEngine, renderer: Renderer
) -> None:
    engine.start_s = 3
    with running(settings, engine, renderer, wait=False) as server:
        until(lambda: server.server.started)
        with visit(browser, server.url) as seen:
            expect(seen.page.locator("#model")).to_have_text("the model is being loaded …")
            expect(seen.page.locator("#model")).to_contain_text("1,024 tokens")
            seen.ask("Name three rivers.")
            expect(seen.timings).to_have_count(1)


def test_text_of_an_answer_is_text(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("<img src=x onerror=alert(1)>", "\n```\n<b>code</b>\n```\n")
    seen.ask("Show me some markup.")
    expect(seen.timings).to_have_count(1)
    expect(seen.answers).to_contain_text("<img src=x onerror=alert(1)>")
    expect(seen.answers.locator("pre")).to_have_text("<b>code</b>\n")
    assert seen.answers.locator("img, b").count() == 0


def test_streaming_moves_the_first_text_and_keeps_the_total(seen: Visit, engine: ScriptedEngine) -> None:
    for _ in range(2):
        engine.script("Rhine", 1.0, " Danube")
    seen.draft.fill("Name two rivers.")
    seen.button("Compare").click()
    pair = seen.page.get_by_role("region", name="Streaming off and on")
    expect(pair.locator(".outcome")).to_contain_text(re.compile(r"First text (\d{3} ms|1\.\d\d s) earlier"))
    assert pair.locator(".sample").all_text_contents() == ["Rhine Danube", "Rhine Danube"]
    assert [work.sampling.temperature for work in engine.started] == [0, 0]
    expect(seen.draft).to_have_value("Name two rivers.")


def test_the_conversation_outlives_a_reload_and_ends_when_told(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine")
    seen.ask("One river?")
    expect(seen.timings).to_have_count(1)
    seen.page.reload()
    expect(seen.answers).to_have_text("Rhine")
    expect(seen.timings).to_contain_text("Bound by")
    seen.button("New").click()
    seen.page.reload()
    expect(seen.page.get_by_role("heading", name="One answer is two jobs")).to_be_visible()


def test_the_conversation_can_be_saved_as_json(seen: Visit, engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.script("Rhine")
    seen.setting("System message").fill("Be brief.")
    seen.ask("One river?")
    expect(seen.timings).to_have_count(1)
    with seen.page.expect_download() as download:
        seen.button("Save").click()
    download.value.save_as(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert [message["content"] for message in saved["messages"]] == ["Be brief.", "One river?", "Rhine"]
    assert saved["messages"][-1]["phases"]["bound_by"]


def test_the_curl_command_asks_the_same(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("It is Aare.")
    seen.draft.fill("Which river's in Bern, and what does 'Aare' mean?")
    seen.button("curl").click()
    command = seen.page.locator("#command").text_content() or ""
    done = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, text=True, timeout=20)
    assert "It is Aare." in done.stdout, done.stderr
    assert "data: [DONE]" in done.stdout


def test_a_broken_memory_of_the_browser_does_no_harm(browser: Browser, server: Running) -> None:
    with visit(browser, server.url) as seen:
        seen.page.evaluate("localStorage.setItem('twophase-conversation', '{\"messages\": 3')")
        seen.page.reload()
        seen.ask("Name three rivers.")
        expect(seen.timings).to_have_count(1)


def test_a_stop_before_the_first_text_gives_the_question_back(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script(60.0, "Rhine")
    seen.ask("Name three rivers.")
    until(lambda: engine.started)
    seen.page.keyboard.press("Escape")
    expect(seen.draft).to_have_value("Name three rivers.")
    expect(seen.page.locator(".turn")).to_have_count(0)
    until(lambda: engine.aborted)


def test_a_new_conversation_begins_empty_also_while_an_old_answer_comes_in(
    seen: Visit, engine: ScriptedEngine
) -> None:
    engine.script("Rhine", 60.0, " Danube")
    seen.ask("Name three rivers.")
    expect(seen.answers).to_have_text("Rhine")
    seen.button("New").click()
    until(lambda: engine.aborted)
    expect(seen.button("Send")).to_be_visible()
    seen.page.reload()
    expect(seen.page.get_by_role("heading", name="One answer is two jobs")).to_be_visible()
    expect(seen.draft).to_have_value("")


def test_a_browser_that_allows_no_storage_loses_nothing_else(browser: Browser, server: Running) -> None:
    forbid = """for (const name of ["localStorage", "sessionStorage"])
        Object.defineProperty(window, name, {get() { throw new DOMException("no", "SecurityError"); }});"""
    with visit(browser, server.url) as seen:
        seen.page.add_init_script(forbid)
        seen.page.reload()
        seen.ask("Name three rivers.")
        expect(seen.timings).to_have_count(1)
        seen.button("curl").click()
        expect(seen.page.get_by_role("dialog")).to_be_visible()


def test_of_two_lanes_one_that_is_refused_ends_the_other(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine", 60.0)
    engine.script(Overloaded("The service is full; come back later.", retry_after_s=7))
    seen.draft.fill("Name two rivers.")
    seen.button("Compare").click()
    expect(seen.trouble).to_be_visible()
    until(lambda: engine.aborted)
    expect(seen.button("Send")).to_be_visible()


def test_escape_closes_what_is_open_before_it_stops_an_answer(seen: Visit, engine: ScriptedEngine) -> None:
    engine.script("Rhine", 60.0, " Danube")
    seen.ask("Name three rivers.")
    expect(seen.answers).to_have_text("Rhine")
    seen.button("curl").click()
    expect(seen.page.get_by_role("dialog")).to_be_visible()
    seen.page.keyboard.press("Escape")
    expect(seen.page.get_by_role("dialog")).to_be_hidden()
    assert not engine.aborted
    seen.page.keyboard.press("Escape")
    until(lambda: engine.aborted)
