"""What has been tokenized before: pieces of prompts and their ids, bounded in bytes.

A piece is known by a keyed hash that includes the cache group, so nobody can find out, by timing, what
another group has sent; and the memory holds nobody's text.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from threading import Lock

from service.prompt.encoders import Known, Piece

ENTRY_BYTES = 600  # a key, its ids' container, counts, and a place in the table; measured

Key = tuple[bytes, bool, tuple[int, ...]]


class PieceCache:
    """The least recently used pieces go first. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._bytes = 0
        self._secret = secrets.token_bytes(32)
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """Memory taken, in bytes."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._known)

    def keys(self, group: str, pieces: Iterable[Piece]) -> list[Key]:
        """Keys for pieces under one cache group."""
        group_key = blake2b(group.encode(), key=self._secret, digest_size=32).digest()
        of_group = blake2b(key=group_key, digest_size=16)
        keys = []
        for piece in pieces:
            digest = of_group.copy()
            digest.update(piece.text.encode())
            keys.append((digest.digest(), piece.after_marker, piece.shape))
        return keys

    def get(self, keys: Sequence[Key]) -> list[Known | None]:
        """What is known of each key."""
        with self._lock:
            found = [self._known.get(key) for key in keys]
            for key, known in zip(keys, found, strict=True):
                if known is not None:
                    self._known.move_to_end(key)
        return found

    def put(self, learned: Iterable[tuple[Key, Known]]) -> None:
        """Remember pieces; what is too large to share the memory with others is not kept."""
        with self._lock:
            for key, known in learned:
                size = _size(known)
                if size <= self._max_bytes // 4 and key not in self._known:
                    self._known[key] = known
                    self._bytes += size
            while self._bytes > self._max_bytes:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(known: Known) -> int:
    return ENTRY_BYTES + known.ids.itemsize * len(known.ids)
