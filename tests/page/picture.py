"""`python -m tests.page.picture` takes the pictures of the playground: real service, real browser."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, expect

from tests.page.browser import Visit, chromium, visit
from tests.real.conftest import serving

PICTURES = Path(__file__).parents[2] / "grafana" / "pictures"
SIZE = {"width": 1180, "height": 940}
PHONE = {"width": 390, "height": 844}


def main() -> None:
    """All pictures, anew."""
    with serving() as served:
        take(served.url)


def take(url: str) -> None:
    """All pictures, of a service that runs."""
    with chromium() as browser:
        _picture(browser, url, "light")
        _picture(browser, url, "dark")
        with visit(browser, url, color_scheme="dark", viewport=PHONE, device_scale_factor=1.5) as seen:
            _asked(seen)
            _save(seen, "playground-phone")


def _picture(browser: Browser, url: str, scheme: Literal["light", "dark"]) -> None:
    with visit(browser, url, color_scheme=scheme, viewport=SIZE) as seen:
        seen.setting("System message").fill("You are a helpful assistant who answers in one paragraph.")
        _asked(seen)
        if scheme == "dark":
            seen.draft.fill("And why is the sea salty?")
            seen.button("Compare").click()
            expect(seen.page.locator(".outcome")).to_contain_text("the work is the same", timeout=60_000)
        seen.draft.fill("And what is the tide?")
        expect(seen.page.locator("#forecast")).to_contain_text("should be cached")
        seen.page.wait_for_timeout(1_000)  # the bar glides to its place
        _save(seen, f"playground-{scheme}")


def _asked(seen: Visit) -> None:
    if not seen.setting("Output limit").is_visible():
        seen.button("Details").click()
    seen.setting("Output limit").fill("80")
    seen.page.keyboard.press("Escape")
    seen.ask("Why is the sky blue?")
    expect(seen.timings).to_have_count(1, timeout=60_000)


def _save(seen: Visit, name: str) -> None:
    """A third of the size, with every small spot of colour as it is."""
    shot = Image.open(io.BytesIO(seen.page.screenshot())).convert("RGB")
    small = shot.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
