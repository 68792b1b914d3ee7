"""How tokens are chosen: the caller's wishes, engine-neutral, and the checks that need the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.errors import InvalidValue, shown

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, in the words of OpenAI's API and vLLM's extras to it.

    Ranges of single values are checked where the request is read; `check_sampling` does the rest.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    thinking_token_budget: int | None = None  # tokens after which the model is made to answer
    top_logprobs: int | None = None  # likeliest tokens told at each place; None: no logprobs at all


def check_sampling(sampling: Sampling, n: int, max_output_tokens: int, vocab_size: int) -> None:
    """Refuse what the engine would trip over.

    Token ids index the logits, so one beyond them reads or writes a neighbour's row. Choice i of n
    is seeded with `seed + i`, which has to stay a 64-bit integer as well.

    Raises:
        InvalidValue: naming the field.
    """
    _in_vocabulary("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _in_vocabulary("allowed_token_ids", sampling.allowed_token_ids or (), vocab_size)
    _in_vocabulary("logit_bias", sampling.logit_bias, vocab_size)
    if sampling.min_tokens > max_output_tokens:
        raise InvalidValue(
            f"min_tokens is {sampling.min_tokens}, but the answer may have only {max_output_tokens} tokens; "
            "lower min_tokens or raise max_tokens.",
            param="min_tokens",
        )
    if sampling.seed is not None and sampling.seed > INT64_MAX - (n - 1):
        raise InvalidValue(
            f"seed {sampling.seed} leaves no room for n = {n} seeds below 2^63; choose a smaller one.",
            param="seed",
        )


def _in_vocabulary(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidValue(
                f"{name} holds {shown(token_id)}; this model's token ids run from 0 to {vocab_size - 1}.",
                param=name,
            )
