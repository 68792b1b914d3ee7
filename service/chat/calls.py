"""Takes forced tool calls apart, delta by delta: their form is known, since they are held to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.engine.protocol import CallDelta, CallReader, Delta, new_call_id

# Inside the arguments only these matter: what opens, closes, or quotes.
MARKS = re.compile(r'[{}\[\]"\\]')
HEAD = re.compile(r'\s*[\[,]\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"parameters"\s*:\s*(?=\S)')


class NamedCall(CallReader):
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def read(self, delta: Delta) -> None:
        if self._name is not None:
            delta.calls = (CallDelta(0, delta.text, new_call_id(), self._name),)
            self._name = None
        elif delta.text:
            delta.calls = (CallDelta(0, delta.text),)
        delta.text = ""
        if delta.finish == "stop":
            delta.finish = "tool_calls"


class CallList(CallReader):
    """The text is a list of calls, `[{"name":"…","parameters":{…}},…]`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._index = -1
        self._head = ""  # of the next call, until its arguments begin
        self._inside = False  # the arguments of a call
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def read(self, delta: Delta) -> None:
        text, delta.text = delta.text, ""
        calls: list[CallDelta] = []
        while text:
            text = self._arguments(text, calls) if self._inside else self._between(text, calls)
        if delta.finish == "length" and self._index < 0:
            self._cut_off(calls)
        delta.calls = calls
        if delta.finish == "stop":
            delta.finish = "tool_calls"

    def _cut_off(self, calls: list[CallDelta]) -> None:
        """The budget ended before the arguments began: a call all the same, if it is clear which."""
        begun = [name for name in self._names if f'[{{"name":"{name}","parameters":'.startswith(self._head)]
        if len(begun) == 1:
            calls.append(CallDelta(0, "", new_call_id(), begun[0]))

    def _between(self, text: str, calls: list[CallDelta]) -> str:
        self._head += text
        head = HEAD.match(self._head)
        if head is None:
            return ""
        self._index += 1
        self._inside = True
        calls.append(CallDelta(self._index, "", new_call_id(), head[1]))
        rest, self._head = self._head[head.end() :], ""
        return rest

    def _arguments(self, text: str, calls: list[CallDelta]) -> str:
        """Pass on what belongs to the call's arguments; what comes behind them is given back."""
        end = self._end(text)
        if own := text[:end]:
            if calls and calls[-1].index == self._index:
                calls[-1].arguments = own
            else:
                calls.append(CallDelta(self._index, own))
        if end is None:
            return ""
        self._inside = False
        return text[end + 1 :]  # without the brace that closes the call

    def _end(self, text: str) -> int | None:
        """Where the call's own closing brace is: the first one that the arguments have not opened."""
        at = int(self._escaped)
        self._escaped = False
        while (mark := MARKS.search(text, at)) is not None:
            character, at = mark[0], mark.end()
            if character == "\\":
                at += 1  # what it escapes is text
                self._escaped = at > len(text)
            elif character == '"':
                self._quoted = not self._quoted
            elif self._quoted:
                continue
            elif character in "{[":
                self._depth += 1
            elif self._depth:
                self._depth -= 1
            else:
                return mark.start()
        return None
