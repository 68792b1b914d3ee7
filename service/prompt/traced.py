"""Text that knows who wrote it, and keeps knowing through whatever a template does to it.

A template sees an ordinary string: equality, length, `in`, hashing are those of `str`. What differs is that
cutting and joining carry along which stretches came from the caller. Everything the template itself writes is
an exact `str`. An operation this module does not know must not lose the mark, so its whole result counts as
the caller's: text wrongly called the caller's costs a marker its meaning, text wrongly called the template's
would let a user forge a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, SupportsIndex, cast

Kind = Literal["template", "generation", "content", "tool_calls", "field", "tools", "argument"]

WRITTEN_BY_TEMPLATE: frozenset[Kind] = frozenset(("template", "generation"))


class Origin(NamedTuple):
    """Where text comes from: the message it belongs to, if any, and the part it plays."""

    message: int | None
    kind: Kind

    @property
    def of_template(self) -> bool:
        return self.kind in WRITTEN_BY_TEMPLATE


Span = tuple[int, int, Origin]

LOOSE = Origin(None, "template")
UNKNOWN = Origin(None, "field")


class Traced(str):
    """A string with the spans that did not come from the template's own text.

    An empty span marks a place: that a field was empty there, or (of a template's kind) to which message the
    template's own text belongs from there on.
    """

    __slots__ = ("_spans",)

    _spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Iterable[Span] = ()) -> Traced:
        traced = str.__new__(cls, text)
        traced._spans = tuple(spans)
        return traced

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if type(other) is str:  # by far the most frequent, and no span moves
            return Traced(str.__add__(self, other), self._spans)
        return join((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            at = range(len(self))[key.__index__()]
            return self._cut(at, at + 1)
        start, stop, step = key.indices(len(self))
        if step == 1:
            return self._cut(start, max(start, stop))
        return whole(str.__getitem__(self, key), origin_of(self))

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self._cut(start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, len(self) - len(suffix) if self.endswith(suffix) else len(self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(str.split(self, sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(str.rsplit(self, sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._located(str.splitlines(self, keepends), 0)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return cast("tuple[str, str, str]", tuple(self._located(str.partition(self, sep), 0)))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return cast("tuple[str, str, str]", tuple(self._located(str.rpartition(self, sep), 0)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return whole(str.replace(self, old, new, count), origin_of(self))
        return join(self.split(old, count), new)

    def join(self, parts: Iterable[str], /) -> str:
        return join(parts, self)

    def _located(self, pieces: Iterable[str], gap: int) -> list[str]:
        """`pieces` as `str` cut them, each found again in this text; `gap` is what a separator takes up."""
        found, at = [], 0
        for piece in pieces:
            at = self.index(piece, at)
            found.append(self._cut(at, at + len(piece)))
            at += len(piece) + gap
        return found

    def _cut(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        kept = []
        for a, b, origin in self._spans:
            first, last = max(a, start), min(b, stop)
            if first < last or (first == last and (a == b or start == stop)):
                kept.append((first - start, last - start, origin))
        return Traced(text, kept) if kept else text


def join(parts: Iterable[Any], sep: str = "") -> str:
    """`sep.join(parts)` with every span in its new place; an exact `str` if there are none."""
    texts: list[str] = []
    spans: list[Span] = []
    at = 0
    for part in _separated(parts, sep) if sep else parts:
        text = part if isinstance(part, str) else str(part)
        if isinstance(text, Traced):
            spans += [(a + at, b + at, origin) for a, b, origin in text._spans] if at else text._spans
        texts.append(text)
        at += len(text)
    return Traced("".join(texts), spans) if spans else "".join(texts)


def whole(text: str, origin: Origin) -> Traced:
    """`text`, all of it from one origin."""
    return Traced(text, ((0, len(text), origin),))


def mark(origin: Origin) -> Traced:
    """Nothing but a place: from here on, what the template writes belongs to `origin`."""
    return Traced("", ((0, 0, origin),))


def spans_of(text: str) -> tuple[Span, ...]:
    """The spans of `text`, in the order of the text."""
    return text._spans if isinstance(text, Traced) else ()


def origin_of(value: object) -> Origin:
    """The first origin in `value`, however deep; `LOOSE` if all of it is the template's own."""
    if isinstance(value, Traced):
        of_request = (origin for _, _, origin in value._spans if not origin.of_template)
        return next(of_request, LOOSE)
    if value is None or isinstance(value, (str, int, float)):
        return LOOSE
    if isinstance(value, Mapping):
        return origin_of([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple)):
        return next((found for found in map(origin_of, value) if not found.of_template), LOOSE)
    return UNKNOWN


def _separated(parts: Iterable[Any], sep: str) -> Iterator[Any]:
    for number, part in enumerate(parts):
        if number:
            yield sep
        yield part
