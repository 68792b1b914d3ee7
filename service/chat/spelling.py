"""Which token made which text: tokens and text come apart, and are brought together again here.

Text lags behind its tokens while a character is spread over several of them, or while what may become a
stop string is held back; and some tokens have no text at all. Each token waits here for its own.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.protocol import Delta, TokenLogprob


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The bytes of each token, and which tokens are left out of the text."""

    bytes_by_id: Sequence[bytes]
    hidden: frozenset[int] = frozenset()

    def raw(self, token_id: int) -> bytes:
        """What a token stands for, shown or not."""
        return self.bytes_by_id[token_id] if token_id < len(self.bytes_by_id) else b""

    def shown(self, token_id: int) -> bytes:
        """What a token puts into the text."""
        return b"" if token_id in self.hidden else self.raw(token_id)


@dataclass(slots=True)
class Spelled:
    """A token with the text it made: of a character made by several tokens, the last one has it."""

    token_id: int
    text: str
    spelled: bytes  # what of its bytes is in the text
    whole: bool  # its last byte ends a character
    logprob: TokenLogprob | None = None


class Speller:
    """Gives each token of one choice its text. Nothing is lost: joined texts are the choice's text."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # there, and not given to a token yet
        self._waiting: list[Spelled] = []  # `text` is what they should bring

    def take(self, delta: Delta) -> list[Spelled]:
        """The tokens whose text is now there; at the end, all of them."""
        self._text += delta.text
        for at, token_id in enumerate(delta.token_ids):
            raw = self._alphabet.shown(token_id)
            logprob = delta.logprobs[at] if at < len(delta.logprobs) else None
            text = self._decoder.decode(raw)
            self._waiting.append(Spelled(token_id, text, raw, not self._decoder.getstate()[0], logprob))
        tokens = self._released(self._ready())
        return tokens if delta.finish is None else tokens + self._rest()

    def alone(self, delta: Delta) -> bool:
        """Whether the delta is one token with the text that its bytes make, as nearly all are, and nothing
        waits before it: then there is nothing to spell."""
        if self._waiting or self._text or len(delta.token_ids) != 1 or delta.logprobs or delta.finish:
            return False
        return bool(delta.text) and self._alphabet.shown(delta.token_ids[0]) == delta.text.encode()

    def _ready(self) -> int:
        """How many waiting tokens have all their text, the last of them not without any."""
        ready, reach, something = 0, 0, False
        for at, token in enumerate(self._waiting, start=1):
            if not self._text.startswith(token.text, reach):
                # Either its text is not all there, or this tokenizer joins its tokens in another way.
                return ready if token.text.startswith(self._text[reach:]) else self._give_up()
            reach += len(token.text)
            something = something or bool(token.text)
            if something and token.whole:
                ready, something = at, False
        return ready

    def _give_up(self) -> int:
        """The text there is goes to the last token, and those after it start anew."""
        for token in self._waiting:
            token.text = ""
        self._waiting[-1].text = self._text
        self._decoder.reset()
        return len(self._waiting)

    def _released(self, count: int) -> list[Spelled]:
        tokens, self._waiting = self._waiting[:count], self._waiting[count:]
        self._text = self._text[sum([len(token.text) for token in tokens]) :]
        return tokens

    def _rest(self) -> list[Spelled]:
        """What waits at the end: text that a stop string cut off, or that never became one, is taken out."""
        tokens, self._waiting = self._waiting, []
        if tokens:
            tokens[-1].text += self._decoder.decode(b"", True)
            tokens[-1].whole = True
        start = 0
        for end, token in enumerate(tokens, start=1):
            if token.whole:
                self._cut(tokens[start:end])
                start = end
        if tokens:
            tokens[-1].text += self._text
        return tokens

    def _cut(self, group: list[Spelled]) -> None:
        """Leave to tokens that share a character what of their text is there."""
        wanted = "".join(token.text for token in group)
        kept = next((n for n in range(len(wanted), 0, -1) if self._text.startswith(wanted[:n])), 0)
        left = _bytes_of(b"".join(token.spelled for token in group), kept)
        for token in group:
            token.spelled, left = token.spelled[:left], max(0, left - len(token.spelled))
            token.text = ""
        group[-1].text, self._text = wanted[:kept], self._text[kept:]


def _bytes_of(raw: bytes, characters: int) -> int:
    """How many bytes of `raw` make its first characters."""
    return max(
        size for size in range(len(raw) + 1) if len(raw[:size].decode("utf-8", "replace")) <= characters
    )
