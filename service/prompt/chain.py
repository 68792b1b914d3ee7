"""Hashes of the beginnings of a prompt, one for each whole block: equal hashes, equal tokens up to there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]

_PLACE = np.uint64(32)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def chained(ids: Ids, seed: int, block: int, known: list[int]) -> list[int]:
    """The hashes of all whole blocks of `ids`, the first of which are `known`.

    A token's id and place, under the seed, are mixed into 64 bits (the finalizer of splitmix64: Steele, Lea,
    Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), and the hash of a beginning is the
    sum of its tokens' modulo 2^64: so all hashes come out of one running sum.
    """
    first, last = len(known) * block, len(ids) // block * block
    if first == last:
        return known
    mixed = np.arange(first, last, dtype=np.uint64)
    mixed <<= _PLACE
    mixed |= ids[first:last]
    mixed ^= np.uint64(seed)
    mixed ^= mixed >> _SHIFT_1
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFT_3
    if known:
        mixed[0] = (int(mixed[0]) + known[-1]) % 2**64
    sums: list[int] = np.cumsum(mixed, out=mixed)[block - 1 :: block].tolist()
    return known + sums
