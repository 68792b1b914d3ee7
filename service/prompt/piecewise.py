"""Token ids of a rendered prompt, piece by piece between the template's markers.

A tokenizer splits its input at added tokens before anything else, so the pieces between them can be tokenized
one by one, and a piece seen before need not be tokenized again. Markers are looked for in the template's own
text only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.prompt.encoders import Encoder, Known, Piece
from service.prompt.layout import Run
from service.prompt.pieces import Key, PieceCache
from service.prompt.vocabulary import Control, any_of

KNOWN_STRETCHES = 4096
WIDE_SPACES = "".join(map(chr, range(0x2000, 0x200B)))
WHITE_SPACE = f" \t\n\v\f\r\x85\xa0\u1680{WIDE_SPACES}\u2028\u2029\u202f\u205f\u3000"

Marker = tuple[int, int, Control]


@dataclass(slots=True)
class Plan:
    """A prompt on its way to ids: its pieces, the markers between them, and what is known of the pieces."""

    runs: Sequence[Run]
    pieces: list[Piece]
    markers: list[tuple[int, int]]  # after each piece but the last: an id, and the run it stands in
    keys: list[Key]
    known: list[Known | None]

    @property
    def unknown(self) -> list[int]:
        return [at for at, known in enumerate(self.known) if known is None]

    @property
    def unknown_characters(self) -> int:
        return sum(len(self.pieces[at].text) for at in self.unknown)

    def assembled(self) -> tuple[list[int], list[int]]:
        """All ids in order, and how many of them lie in each run."""
        ids: list[int] = []
        counts = [0] * len(self.runs)
        for at, (piece, known) in enumerate(zip(self.pieces, self.known, strict=True)):
            assert known is not None, "fill the plan first"
            ids += known.ids
            for run, count in enumerate(known.counts, piece.run):
                counts[run] += count
            if at < len(self.markers):
                marker, run = self.markers[at]
                ids.append(marker)
                counts[run] += 1
        return ids, counts


class Piecewise:
    """Makes plans, and tokenizes what they lack."""

    def __init__(self, encoder: Encoder, cache: PieceCache) -> None:
        self._encoder = encoder
        self._cache = cache
        self._pattern = any_of(encoder.markers)
        self._stretches: dict[str, list[Marker]] = {}
        self._swallows = any(control.lstrip or control.rstrip for control in encoder.markers.values())

    def plan(self, rendered: str, runs: Sequence[Run], group: str) -> Plan:
        """Cut the text into pieces and look each of them up."""
        text = str.__str__(rendered)  # its spans are in the runs by now, and would make every cut slow
        markers = [
            marker for start, end in _stretches(runs) for marker in self._markers(text[start:end], start)
        ]
        if self._swallows:
            markers = list(_with_white_space(text, markers))
        pieces, placed = _cut(text, runs, markers)
        keys = self._cache.keys(group, pieces)
        return Plan(runs, pieces, placed, keys, self._cache.get(keys))

    def fill(self, plan: Plan) -> None:
        """Tokenize the pieces nobody has seen, and remember them."""
        unknown = plan.unknown
        pieces = [plan.pieces[at] for at in unknown]
        learned = self._encoder.encode(pieces) if pieces else []
        for at, known in zip(unknown, learned, strict=True):
            plan.known[at] = known
        self._cache.put(zip((plan.keys[at] for at in unknown), learned, strict=True))

    def _markers(self, stretch: str, start: int) -> list[Marker]:
        """The control tokens in a stretch of the template's text that begins at `start`."""
        found = self._stretches.get(stretch)
        if found is None:
            matches = self._pattern.finditer(stretch)
            found = [(match.start(), match.end(), self._encoder.markers[match[0]]) for match in matches]
            if len(self._stretches) >= KNOWN_STRETCHES:
                self._stretches.clear()
            self._stretches[stretch] = found
        return [(start + first, start + last, control) for first, last, control in found]


def _stretches(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Where the template's own text stands between the caller's, whichever messages it belongs to."""
    start = None
    for run in runs:
        if run.of_template and start is None:
            start = run.start
        elif not run.of_template and start is not None:
            yield start, run.start
            start = None
    if start is not None:
        yield start, runs[-1].end


def _with_white_space(text: str, markers: Sequence[Marker]) -> Iterator[Marker]:
    """Markers with the white space they swallow, which may be the caller's."""
    past = 0
    for start, end, control in markers:
        first = past + len(text[past:start].rstrip(WHITE_SPACE)) if control.lstrip else start
        past = len(text) - len(text[end:].lstrip(WHITE_SPACE)) if control.rstrip else end
        yield first, past, control


def _cut(
    text: str, runs: Sequence[Run], markers: Sequence[Marker]
) -> tuple[list[Piece], list[tuple[int, int]]]:
    """The pieces around the markers, and each marker's id with the run it begins in."""
    pieces, placed, at, run = [], [], 0, 0
    for start, end, control in markers:
        shape, first, run = _shape(runs, run, at, start)
        pieces.append(Piece(text[at:start], at > 0, shape, first))
        while runs[run].end <= start:
            run += 1
        placed.append((control.id, run))
        at = end
    shape, first, run = _shape(runs, run, at, len(text))
    pieces.append(Piece(text[at:], at > 0, shape, first))
    return pieces, placed


def _shape(runs: Sequence[Run], run: int, start: int, stop: int) -> tuple[tuple[int, ...], int, int]:
    """The ends of the runs between two places, as a `Piece` has them; the first run and the last."""
    if start == stop:
        return (), run, run
    while runs[run].end <= start:
        run += 1
    first, ends = run, []
    while True:
        _, end, _, of_template = runs[run]
        reach = min(end, stop) - start
        ends.append(-reach if of_template else reach)
        if end >= stop:
            return tuple(ends), first, run
        run += 1
