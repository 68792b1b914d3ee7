"""Logprobs in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.chat.spelling import Alphabet
from service.engine.protocol import TokenLogprob


def logprobs_body(
    alphabet: Alphabet, tokens: Sequence[TokenLogprob], thought: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The object `logprobs` of a choice.

    `bytes` of a token are those it put into the text, so that joined they are the text: none for a
    token that is left out of it. A token that is only a part of a character reads as U+FFFD. Beside
    OpenAI's lists, `reasoning` has the tokens of the thinking.
    """
    body: dict[str, Any] = {"content": [_entry(alphabet, token) for token in tokens], "refusal": None}
    if thought:
        body["reasoning"] = [_entry(alphabet, token) for token in thought]
    return body


def _entry(alphabet: Alphabet, token: TokenLogprob) -> dict[str, Any]:
    return {
        **_named(alphabet, token.token_id, token.logprob),
        "bytes": list(token.spelled),
        "top_logprobs": [_named(alphabet, *likely) for likely in token.top],
    }


def _named(alphabet: Alphabet, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": alphabet.raw(token_id).decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(alphabet.shown(token_id)),
    }
