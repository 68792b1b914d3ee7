"""Token streams as vLLM makes them, from a real tokenizer: text that lags, stop strings, merged deltas."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from service.engine.protocol import Delta, TokenLogprob


def deltas(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    stop: str = "",
    skip_special: bool = True,
    logprobs: bool = True,
) -> Iterator[Delta]:
    """One delta for each token until the end or the stop string, which is held back as vLLM does."""
    stream = DecodeStream(skip_special_tokens=skip_special)
    text, sent = "", 0
    for at, token_id in enumerate(ids):
        try:
            text += stream.step(tokenizer, token_id) or ""
        except (
            Exception
        ) as exc:  # bytes that make no characters may break its state; vLLM starts it anew, too
            assert str(exc).startswith("Invalid prefix encountered")
            stream = DecodeStream(skip_special_tokens=skip_special)
            text += stream.step(tokenizer, token_id) or ""
        found = text.find(stop) if stop else -1
        over = found >= 0 or at == len(ids) - 1
        end = found if found >= 0 else len(text) if over else max(sent, len(text) - max(0, len(stop) - 1))
        told = [TokenLogprob(token_id, -1.0)] if logprobs else []
        yield Delta(0, text[sent:end], [token_id], "stop" if over else None, logprobs=told)
        sent = end
        if over:
            return


def merged(parts: Sequence[Delta], seed: int) -> list[Delta]:
    """The same with neighbours merged by chance, as for an answer that is not streamed."""
    chance = random.Random(seed)
    groups: list[list[Delta]] = [[]]
    for part in parts:
        if groups[-1] and chance.random() < 0.5:
            groups.append([])
        groups[-1].append(part)
    return [_joined(group) for group in groups]


def _joined(parts: Sequence[Delta]) -> Delta:
    return Delta(
        0,
        "".join(part.text for part in parts),
        [token_id for part in parts for token_id in part.token_ids],
        parts[-1].finish,
        logprobs=[told for part in parts for told in part.logprobs],
    )
