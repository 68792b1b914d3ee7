"""What each cache group has sent to the engine, bounded in bytes: from it follows what is cached there.

The latest conversations are kept whole, so that the next one can be held against them. A table leads from the
hash of each beginning, in whole blocks, to the latest conversation that has it. The oldest go first; as an
older one with the same beginning has always gone before, whoever's last block is known has all of them known.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from service.prompt.chain import chained
from service.prompt.sent import Sent

RECENT = 16  # conversations of a group that a prompt without a known block is held against
CONVERSATION_BYTES = 800  # the containers; this and the next two are measured
BLOCK_BYTES = 100  # a hash and its place in the table
SEGMENT_BYTES = 130


class Recollection(NamedTuple):
    """What is known of a prompt before it is sent."""

    sent: Sent
    hashes: list[int]
    known_tokens: int  # leading ones that were sent before, in whole blocks, and need not be computed
    before: tuple[Sent, ...]  # what it may go on from, the likeliest first


class _Kept(NamedTuple):
    sent: Sent
    hashes: list[int]

    @property
    def size_bytes(self) -> int:
        sent = self.sent
        parts = BLOCK_BYTES * len(self.hashes) + SEGMENT_BYTES * len(sent.segments)
        return CONVERSATION_BYTES + sent.ids.nbytes + parts


class PromptMemory:
    """Keeps at most `max_bytes`; 0 keeps nothing. Only `hashed` may run in another thread."""

    def __init__(self, max_bytes: int) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._block = 0
        self._secret = secrets.token_bytes(32)
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._by_group: dict[str, OrderedDict[int, None]] = {}
        self._last_with: dict[int, int] = {}
        self._numbers = 0

    def open(self, block_tokens: int) -> None:
        """Whole blocks of so many tokens are what the engine keeps; 0: it keeps nothing."""
        self._block = block_tokens

    def __len__(self) -> int:
        return len(self._kept)

    def hashed(self, sent: Sent, known: list[int] | None = None) -> list[int]:
        """The hashes of the beginnings of what the engine computes, some of which may be `known`."""
        if not self._block:
            return []
        seed = blake2b(sent.group.encode(), key=self._secret, digest_size=8).digest()
        computed = sent.ids[: sent.computed_tokens]
        return chained(computed, int.from_bytes(seed, "big"), self._block, known or [])

    def recall(self, sent: Sent, hashes: list[int]) -> Recollection:
        """What of a prompt was sent before, and with what."""
        known = bisect_left(range(len(hashes)), True, key=lambda at: hashes[at] not in self._last_with)
        most = (sent.prompt_tokens - 1) // self._block if self._block else 0
        before = self._before(sent.group, hashes[known - 1] if known else None)
        return Recollection(sent, hashes, min(known, most) * self._block, tuple(before))

    def remember(self, sent: Sent, hashes: list[int], instead_of: int = 0) -> int:
        """Keep what has gone to the engine, in place of what it contains; gives a number for `instead_of`."""
        kept = _Kept(sent, hashes)
        if kept.size_bytes > self._max_bytes // 2:
            return 0
        covered = {number for number in self._sharing(hashes) if self._covers(hashes, number)}
        if instead_of in self._kept:
            covered.add(instead_of)
        self._numbers += 1
        self._kept[self._numbers] = kept
        self._by_group.setdefault(sent.group, OrderedDict())[self._numbers] = None
        self._last_with.update(dict.fromkeys(hashes, self._numbers))
        self.used_bytes += kept.size_bytes
        for number in covered:
            self._forget(number)
        while self.used_bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))
        return self._numbers

    def _before(self, group: str, last_known: int | None) -> Iterator[Sent]:
        first = None if last_known is None else self._last_with.get(last_known)
        if first is not None:
            yield self._kept[first].sent
        for number in islice(reversed(self._by_group.get(group, ())), RECENT):
            if number != first:
                yield self._kept[number].sent

    def _sharing(self, hashes: list[int]) -> set[int]:
        """Conversations that were the latest with one of these beginnings."""
        return {self._last_with[at] for at in hashes if at in self._last_with}

    def _covers(self, hashes: list[int], number: int) -> bool:
        own = self._kept[number].hashes
        return len(own) <= len(hashes) and hashes[len(own) - 1] == own[-1]

    def _forget(self, number: int) -> None:
        sent, hashes = kept = self._kept.pop(number)
        self.used_bytes -= kept.size_bytes
        of_group = self._by_group[sent.group]
        del of_group[number]
        if not of_group:
            del self._by_group[sent.group]
        for at in hashes:
            if self._last_with.get(at) == number:
                del self._last_with[at]
