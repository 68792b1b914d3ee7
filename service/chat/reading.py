"""What an answer says, made ready for its reader: each piece of text with the tokens that made it."""

from __future__ import annotations

from service.chat.spelling import Alphabet, Speller
from service.engine.protocol import Delta


class Reading:
    """Rewrites deltas so that text and logprobs of each belong together; for answers that need it."""

    def __init__(self, alphabet: Alphabet, n: int) -> None:
        self.alphabet = alphabet
        self._spellers = [Speller(alphabet) for _ in range(n)]

    def read(self, delta: Delta) -> None:
        """Leave in `delta` what its reader gets now; what has no text yet comes with a later one."""
        tokens = self._spellers[delta.index].take(delta)
        delta.text = "".join([token.text for token in tokens])
        delta.logprobs = [
            token.logprob._replace(spelled=token.spelled) for token in tokens if token.logprob is not None
        ]
