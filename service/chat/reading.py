"""What an answer says, made ready for its reader: each piece of text with the tokens that made it."""

from __future__ import annotations

from collections.abc import Sequence

from service.chat.spelling import Alphabet, Spelled, Speller
from service.engine.protocol import Delta, Thinking, TokenLogprob


class Reading:
    """Rewrites deltas so that text and logprobs of each belong together, and thinking is told from answer.

    `thinkings` are by choice, or none. `unseen` are tokens that only a parser had to see.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        n: int,
        thinkings: Sequence[Thinking] = (),
        unseen: frozenset[int] = frozenset(),
    ) -> None:
        self.alphabet = alphabet
        self._spellers = [Speller(alphabet) for _ in range(n)]
        self._thinkings = thinkings
        self._unseen = unseen
        self._kept: list[list[TokenLogprob]] = [[] for _ in range(n)]

    def read(self, delta: Delta) -> None:
        """Leave in `delta` what its reader gets now; what has no text yet comes with a later one."""
        speller = self._spellers[delta.index]
        thinking = self._thinkings[delta.index] if self._thinkings else None
        if thinking is not None and speller.alone(delta) and not self._kept[delta.index]:
            return self._sort(delta, thinking)
        tokens = speller.take(delta)
        if thinking is not None:
            answered = self._thought(delta, thinking, tokens)
        else:
            delta.text, answered = "".join([token.text for token in tokens]), tokens
        delta.logprobs = _told(answered)
        if delta.logprobs or delta.reasoning_logprobs or self._kept[delta.index]:
            self._keep(delta)

    def _keep(self, delta: Delta) -> None:
        """What is told of a mark, which nobody sees, comes with the next text."""
        kept = self._kept[delta.index]
        delta.reasoning_logprobs = [*kept, *delta.reasoning_logprobs]
        kept.clear()
        if not (delta.text or delta.reasoning or delta.finish):
            kept += delta.reasoning_logprobs
            delta.reasoning_logprobs = ()

    def _sort(self, delta: Delta, thinking: Thinking) -> None:
        """A delta that is one token with its text, as nearly all are."""
        delta.reasoning, delta.text, thought = self._apart(thinking, delta.text, delta.token_ids[0])
        if thought:
            delta.reasoning_tokens += 1
            delta.token_ids = []

    def _thought(self, delta: Delta, thinking: Thinking, tokens: Sequence[Spelled]) -> Sequence[Spelled]:
        """Sort text into thinking and answer; gives the tokens of the answer."""
        thoughts = answers = ""
        start = 0  # of the answer among the tokens
        for token in tokens:
            if thinking.ended and token.token_id in self._unseen:
                token.spelled = b""
            thought, answer, is_thought = self._apart(thinking, token.text, token.token_id)
            thoughts += thought
            answers += answer
            start += is_thought
            delta.reasoning_tokens += is_thought
        if delta.finish is not None:
            thought, answer = thinking.finish()
            thoughts += thought
            answers += answer
        delta.reasoning, delta.text = thoughts, answers
        delta.token_ids = [token.token_id for token in tokens[start:]]
        delta.reasoning_logprobs = _told(tokens[:start])
        return tokens[start:]

    def _apart(self, thinking: Thinking, text: str, token_id: int) -> tuple[str, str, bool]:
        """What of a token's text is thought and what answer, and as which of them the token counts."""
        if thinking.ended:
            return "", "" if token_id in self._unseen else text, False
        thought, answer = thinking.read(text, token_id)
        return thought, answer, bool(thought) or not answer and (thinking.thinks or thinking.ended)


def _told(tokens: Sequence[Spelled]) -> list[TokenLogprob]:
    return [token.logprob._replace(spelled=token.spelled) for token in tokens if token.logprob is not None]
