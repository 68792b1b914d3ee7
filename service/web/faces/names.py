"""Refusals in the caller's words: what the chat request calls one thing, another API calls another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from service.errors import ServiceError

MESSAGE = re.compile(r"messages\[(\d+)\]")


class Names:
    """`fields` are whole names; `parts` are what follows in a path, longest first.

    `places` are the caller's paths of the chat request's messages, by number. `words` are said in
    sentences, wherever they stand.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        parts: Mapping[str, str],
        words: Mapping[str, str],
        places: Sequence[str] = (),
    ) -> None:
        self._fields = fields
        self._parts = parts
        self._words = words
        self._places = places

    def at(self, places: Sequence[str]) -> Names:
        """These names, for messages that stand at other places."""
        return Names(self._fields, self._parts, self._words, places)

    def tell(self, error: ServiceError) -> None:
        """Put an error into the caller's words."""
        if error.param is not None and (theirs := self.path(error.param)) != error.param:
            error.message = error.message.replace(error.param, theirs)
            error.param = theirs
        for ours, said in self._words.items():
            error.message = error.message.replace(ours, said)

    def path(self, param: str) -> str:
        """The caller's name for a path of the chat request."""
        message = MESSAGE.match(param)
        if message is not None and int(message[1]) < len(self._places):
            head, rest = self._places[int(message[1])], param[message.end() :]
            if "[" not in head:  # the field is the content
                rest = rest.removeprefix(".content")
        else:
            name = re.match(r"\w*", param)
            ours = "" if name is None else name[0]
            head, rest = self._fields.get(ours, ours), param[len(ours) :]
        for part, theirs in self._parts.items():
            rest = rest.replace(part, theirs)
        return head + rest
