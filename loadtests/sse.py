"""Server-sent events out of bytes, wherever the network has cut them."""

from __future__ import annotations

from collections.abc import Iterator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventReader:
    """Takes bytes as they come and gives the data of each event that is complete with them.

    Follows the event stream format of the HTML standard (section 9.2.6): lines end with LF, CR or both;
    lines of `data` are joined with LF; comments and other fields are skipped; an empty line ends an event.
    """

    def __init__(self) -> None:
        self._line = bytearray()  # of the line that is not complete yet
        self._data: list[bytes] = []
        self._after_cr = False
        self._begun = False

    def feed(self, fragment: bytes) -> Iterator[bytes]:
        """The data of every event that ends in `fragment`."""
        if self._after_cr and fragment:
            self._after_cr = False
            fragment = fragment.removeprefix(
                b"\n"
            )  # the second half of a line end whose first half ended one
        self._line += fragment
        while (end := self._line_end()) is not None:
            at, length = end
            line = bytes(self._line[:at])
            del self._line[: at + length]
            yield from self._take(line)

    def _line_end(self) -> tuple[int, int] | None:
        """Where the first line ends, and how long its end is."""
        lf, cr = self._line.find(b"\n"), self._line.find(b"\r")
        if cr < 0 or 0 <= lf < cr:
            return (lf, 1) if lf >= 0 else None
        if cr + 1 == len(self._line):
            self._after_cr = True
            return cr, 1
        return cr, 2 if self._line[cr + 1 : cr + 2] == b"\n" else 1

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data = []
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
