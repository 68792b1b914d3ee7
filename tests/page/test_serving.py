"""How the page is served: small, closed to other hosts, open without a key, fresh after an update."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from service.web.playground import MEDIA_TYPES, PAGE_PATHS

FOLDER = files("service.web") / "page"


def test_every_file_of_the_page_is_served_and_no_other() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(MEDIA_TYPES)


def test_the_whole_page_is_lighter_than_100_kb(client: httpx.Client) -> None:
    assert sum(len(client.get(path).content) for path in PAGE_PATHS) < 100_000


def test_nothing_in_it_names_another_host() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
        assert not re.search(r"https?://", text), file.name


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_its_policy_keeps_everything_at_home(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-frame-options"] == "DENY"


def test_what_the_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/page/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.head("/").status_code == 200


@pytest.mark.parametrize("name", ["index.html", "../playground.py", "nothing.js", "%2e%2e/playground.py"])
def test_what_is_no_part_of_it_is_404(client: httpx.Client, name: str) -> None:
    response = client.get(f"/page/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
