"""From pieces of text to ids, and to how many of them lie in each of a piece's runs.

Two ways with one face. `PieceEncoder` is given the text between the template's markers and never makes a
marker of what it reads. `WholeEncoder` is for tokenizers whose ids depend on more than the piece: it is given
the whole prompt, markers and all, so control tokens that a user typed must be refused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from service.errors import InvalidValue, shown
from service.prompt.vocabulary import Control, Vocabulary, any_of

Ends = NDArray[np.int64]


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

    ids: array[int]
    counts: tuple[int, ...]


class Encoder(Protocol):
    """What cuts a text into pieces, and the ids of the pieces."""

    @property
    def markers(self) -> Mapping[str, Control]: ...

    def encode(self, pieces: Sequence[Piece]) -> list[Known]: ...


class PieceEncoder:
    """Reads control tokens as plain characters.

    Before a piece goes a guard, a token with an unguessable name that stands for the marker before the piece:
    some tokenizers treat the beginning of their input differently.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.markers = vocabulary.controls
        self._guard = vocabulary.guard
        self._tokenizer = vocabulary.plain
        self._bytes = vocabulary.bytes_by_id
        self._lengths = np.array([len(text) for text in self._bytes])

    def encode(self, pieces: Sequence[Piece]) -> list[Known]:
        inputs = [self._guard + piece.text if piece.after_marker else piece.text for piece in pieces]
        encodings = self._tokenizer.encode_batch_fast(inputs, add_special_tokens=False)
        known = []
        for piece, encoding in zip(pieces, encodings, strict=True):
            ids = array("I", encoding.ids)
            if piece.after_marker:
                del ids[0]
            known.append(Known(ids, self._counts(piece, ids)))
        return known

    def _counts(self, piece: Piece, ids: array[int]) -> tuple[int, ...]:
        """The tokenizer's own bookkeeping of places is slow, so the lengths of tokens do instead."""
        if len(piece.shape) < 2:
            return (len(ids),) * len(piece.shape)
        raw = piece.text.encode()
        shape = piece.shape if len(raw) == len(piece.text) else _in_bytes(piece.text, piece.shape)
        ends = np.cumsum(self._lengths[np.frombuffer(ids, np.uint32)])
        if self._proves_right(ids, ends, raw, shape):
            return share_out(ends, shape)
        guard = self._guard if piece.after_marker else ""
        places = _ends(self._tokenizer.encode_batch([guard + piece.text], add_special_tokens=False)[0])
        return share_out(places[bool(guard) :] - len(guard), piece.shape)

    def _proves_right(self, ids: array[int], ends: Ends, raw: bytes, shape: Sequence[int]) -> bool:
        """Whether `ends` is right up to the longest run and again after it, where the borders are.

        A tokenizer that changes the text it reads, composing accents for example, makes it wrong.
        """
        borders = [0, *map(abs, shape)]
        start, end = max(pairwise(borders), key=lambda run: run[1] - run[0])
        head = ids[: np.searchsorted(ends, start, "left") + 1]
        tail = ids[np.searchsorted(ends, end, "right") :]
        return ends[-1] == len(raw) and raw.startswith(self._text(head)) and raw.endswith(self._text(tail))

    def _text(self, ids: array[int]) -> bytes:
        return b"".join(map(self._bytes.__getitem__, ids))

    def unspeakable(self) -> list[str]:
        """Control tokens that cannot be had as text: their very characters make the tokenizer write one."""
        ids = {control.id for control in self.markers.values()}
        spelled = self.encode([Piece(name, True, (len(name),), 0) for name in self.markers])
        named = zip(self.markers, spelled, strict=True)
        return [name for name, known in named if not ids.isdisjoint(known.ids)]


class WholeEncoder:
    """Reads a text as the tokenizer does, markers and all."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.markers: Mapping[str, Control] = {}
        self._controls = any_of(vocabulary.controls)
        self._tokenizer = tokenizer

    def encode(self, pieces: Sequence[Piece]) -> list[Known]:
        return [self._known(piece) for piece in pieces]

    def _known(self, piece: Piece) -> Known:
        self._check(piece)
        encoding = self._tokenizer.encode_batch([piece.text], add_special_tokens=False)[0]
        return Known(array("I", encoding.ids), share_out(_ends(encoding), piece.shape))

    def _check(self, piece: Piece) -> None:
        """Refuse a control token that a caller's text makes together with what it stands beside."""
        borders = [abs(end) for end in piece.shape]
        for match in self._controls.finditer(piece.text):
            first, last = bisect_right(borders, match.start()), bisect_left(borders, match.end())
            if first < last and max(piece.shape[first : last + 1]) > 0:
                reason = f"messages spell {shown(match[0])}, a control token of this model."
                raise InvalidValue(reason, param="messages")


def share_out(ends: Ends, shape: Sequence[int]) -> tuple[int, ...]:
    """How many of the tokens that end at `ends` lie in each run; one across a border is the template's."""
    counts, done = [], 0
    for at, end in enumerate(shape[:-1]):
        past = int(np.searchsorted(ends, abs(end), "right"))
        if np.searchsorted(ends, abs(end), "left") == past and not shape[at + 1] < 0 < end:
            past += 1  # the token across this border belongs to the run before it
        counts.append(max(0, min(past, len(ends)) - done))
        done += counts[-1]
    return (*counts, len(ends) - done)


def _ends(encoding: Encoding) -> Ends:
    """Where each token ends, in characters, by the tokenizer's own bookkeeping."""
    return np.maximum.accumulate(np.array([end for _, end in encoding.offsets], dtype=np.int64))


def _in_bytes(text: str, shape: Sequence[int]) -> list[int]:
    """Character borders as byte borders."""
    sizes = (len(text[start:end].encode()) for start, end in pairwise([0, *map(abs, shape)]))
    return [end if border > 0 else -end for end, border in zip(accumulate(sizes), shape, strict=True)]
