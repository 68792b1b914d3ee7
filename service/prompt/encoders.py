"""From pieces of text to ids, and to how many of them lie in each of a piece's runs.

Two ways with one face. `PieceEncoder` is given the text between the template's markers and never makes a
marker of what it reads. `WholeEncoder` is for tokenizers whose ids depend on more than the piece: it is given
the whole prompt, markers and all, so control tokens that a user typed must be refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from tokenizers import Encoding, Tokenizer

from service.prompt.vocabulary import Control, Vocabulary, any_of


class Piece(NamedTuple):
    """Text to encode as one: whether a marker stands before it, and where its runs end.

    Ends are negative where the template wrote the run. `run` is the number of the first of them.
    """

    text: str
    after_marker: bool
    shape: tuple[int, ...]
    run: int


class Known(NamedTuple):
    """A tokenized piece: its ids, and how many of them lie in each of its runs."""

    ids: tuple[int, ...]
    counts: tuple[int, ...]


class Encoder(Protocol):
    """What cuts a text into pieces, what no caller may write, and the ids of pieces."""

    @property
    def markers(self) -> Mapping[str, Control]: ...

    @property
    def refused(self) -> re.Pattern[str]: ...

    def encode(self, pieces: Sequence[Piece]) -> list[Known]: ...


class PieceEncoder:
    """Reads control tokens as plain characters.

    Before a piece goes a guard, a token with an unguessable name that stands for the marker before the piece:
    some tokenizers treat the beginning of their input differently.
    """

    def __init__(self, vocabulary: Vocabulary, *, reject: bool) -> None:
        self.markers = vocabulary.controls
        self._guard = vocabulary.guard
        self._tokenizer = vocabulary.plain
        self._bytes = vocabulary.bytes_by_id
        self._ids = list(range(len(self._bytes)))  # one object per id, however many pieces name it
        self.refused = any_of(self.markers if reject else self._unspeakable())

    def encode(self, pieces: Sequence[Piece]) -> list[Known]:
        inputs = [self._guard + piece.text if piece.after_marker else piece.text for piece in pieces]
        encodings = self._tokenizer.encode_batch_fast(inputs, add_special_tokens=False)
        known = []
        for piece, encoding in zip(pieces, encodings, strict=True):
            ids = tuple(map(self._ids.__getitem__, encoding.ids[1:] if piece.after_marker else encoding.ids))
            known.append(Known(ids, self._counts(piece, ids)))
        return known

    def _counts(self, piece: Piece, ids: Sequence[int]) -> tuple[int, ...]:
        if len(piece.shape) == 1:
            return (len(ids),)
        parts, raw = list(map(self._bytes.__getitem__, ids)), piece.text.encode()
        if b"".join(parts) == raw:
            shape = piece.shape if len(raw) == len(piece.text) else _in_bytes(piece.text, piece.shape)
            return share_out(list(accumulate(map(len, parts))), shape)
        guard = self._guard if piece.after_marker else ""
        ends = _ends(self._tokenizer.encode(guard + piece.text, add_special_tokens=False))
        return share_out([end - len(guard) for end in ends[bool(guard) :]], piece.shape)

    def _unspeakable(self) -> list[str]:
        """Control tokens that cannot be had as text: their very characters make the tokenizer write one."""
        ids = {control.id for control in self.markers.values()}
        spelled = self.encode([Piece(name, True, (len(name),), 0) for name in self.markers])
        named = zip(self.markers, spelled, strict=True)
        return [name for name, known in named if not ids.isdisjoint(known.ids)]


class WholeEncoder:
    """Reads a text as the tokenizer does, markers and all."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.markers: Mapping[str, Control] = {}
        self.refused = any_of(vocabulary.controls)
        self._tokenizer = tokenizer

    def encode(self, pieces: Sequence[Piece]) -> list[Known]:
        return [self._known(piece) for piece in pieces]

    def _known(self, piece: Piece) -> Known:
        encoding = self._tokenizer.encode(piece.text, add_special_tokens=False)
        return Known(tuple(encoding.ids), share_out(_ends(encoding), piece.shape))


def share_out(ends: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """How many of the tokens that end at `ends` lie in each run; one across a border is the template's."""
    counts, done = [], 0
    for at, end in enumerate(shape[:-1]):
        border = abs(end)
        past = bisect_right(ends, border)
        if bisect_left(ends, border) == past and not shape[at + 1] < 0 < end:
            past += 1  # the token across this border belongs to the run before it
        counts.append(max(0, min(past, len(ends)) - done))
        done += counts[-1]
    return (*counts, len(ends) - done)


def _ends(encoding: Encoding) -> list[int]:
    """Where each token ends, in characters, by the tokenizer's own and slower bookkeeping."""
    return list(accumulate((end for _, end in encoding.offsets), max))


def _in_bytes(text: str, shape: Sequence[int]) -> list[int]:
    """Character borders as byte borders."""
    borders = [0, *map(abs, shape)]
    sizes = (len(text[start:end].encode()) for start, end in zip(borders, borders[1:], strict=False))
    return [end if border > 0 else -end for end, border in zip(accumulate(sizes), shape, strict=True)]
