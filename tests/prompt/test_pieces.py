"""What is remembered of pieces: bounded, by group, and nobody's text."""

from __future__ import annotations

import pickle
from array import array

from service.prompt.encoders import Known, Piece
from service.prompt.pieces import ENTRY_BYTES, Key, PieceCache


def piece(text: str, *, after_marker: bool = True, shape: tuple[int, ...] = (1,)) -> Piece:
    return Piece(text, after_marker, shape, 0)


def key(cache: PieceCache, group: str = "a", text: str = "hello") -> Key:
    return cache.keys(group, [piece(text)])[0]


def known(size: int) -> Known:
    return Known(array("I", range(size)), (size,))


def test_what_one_group_sent_another_does_not_find() -> None:
    cache = PieceCache(10_000)
    cache.put([(key(cache, "a"), known(3))])
    assert cache.get([key(cache, "a"), key(cache, "b")]) == [known(3), None]


def test_group_and_text_do_not_run_into_each_other() -> None:
    cache = PieceCache(10_000)
    assert key(cache, "ab", "c") != key(cache, "a", "bc")


def test_keys_differ_by_place_and_runs() -> None:
    cache = PieceCache(10_000)
    pieces = [piece("x"), piece("x", after_marker=False), piece("x", shape=(-1,)), piece("y")]
    assert len(set(cache.keys("a", pieces))) == 4


def test_keys_of_one_service_say_nothing_to_another() -> None:
    assert key(PieceCache(0)) != key(PieceCache(0))


def test_memory_is_bounded_and_counted() -> None:
    cache = PieceCache(10 * (ENTRY_BYTES + 400))
    for number in range(50):
        cache.put([(key(cache, text=str(number)), known(100))])
    assert len(cache) == 10
    assert cache.used_bytes == 10 * (ENTRY_BYTES + 400)


def test_a_larger_piece_takes_more_of_the_memory() -> None:
    cache = PieceCache(10**6)
    cache.put([(key(cache), known(1000))])
    assert cache.used_bytes == ENTRY_BYTES + 4000


def test_what_was_used_last_stays() -> None:
    cache = PieceCache(5 * (ENTRY_BYTES + 4))
    keys = [key(cache, text=str(number)) for number in range(6)]
    cache.put((key, known(1)) for key in keys[:5])
    cache.get([keys[0]])
    cache.put([(keys[5], known(1))])
    assert cache.get(keys) == [known(1), None, *[known(1)] * 4]


def test_a_piece_too_large_to_share_the_memory_is_not_kept() -> None:
    cache = PieceCache(4000)
    cache.put([(key(cache), known(1000))])
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_the_same_piece_twice_is_counted_once() -> None:
    cache = PieceCache(10_000)
    cache.put([(key(cache), known(1)), (key(cache), known(1))])
    assert cache.used_bytes == ENTRY_BYTES + 4


def test_no_text_is_kept() -> None:
    cache = PieceCache(10_000)
    secret = "a text nobody else may read"
    kept = key(cache, text=secret)
    cache.put([(kept, known(1))])
    assert secret.encode() not in pickle.dumps(kept)
