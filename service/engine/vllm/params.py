"""Our sampling in vLLM's words."""

from __future__ import annotations

from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from service.engine.protocol import Work
from service.engine.vllm.grammars import structured_outputs
from service.engine.vllm.translate import translate

FIRST_AND_LAST = 2**31 - 1  # a stream interval that no answer reaches


AS_IT_IS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "thinking_token_budget"),
    *("include_stop_str_in_output", "skip_special_tokens"),
)
LISTS = ("stop", "stop_token_ids", "bad_words")


def sampling_params(work: Work) -> SamplingParams:
    """Parameters for one request.

    Raises:
        CallerError: vLLM does not take a value.
    """
    s = work.sampling
    try:
        params = SamplingParams(
            **{name: getattr(s, name) for name in AS_IT_IS},
            **{name: list(getattr(s, name)) for name in LISTS},
            max_tokens=work.max_output_tokens,
            allowed_token_ids=None if s.allowed_token_ids is None else list(s.allowed_token_ids),
            logit_bias=dict(s.logit_bias) or None,
            structured_outputs=None if work.constraint is None else structured_outputs(work.constraint),
            logprobs=s.top_logprobs,
            flat_logprobs=True,
            output_kind=RequestOutputKind.DELTA,
            stream_interval=None if work.stream else FIRST_AND_LAST,
            skip_clone=True,  # made for this request alone
        )
    except VLLMClientError as exc:
        raise translate(exc) from exc
    # Set afterwards: vLLM refuses n > 1 at temperature 0, where OpenAI gives n equal answers.
    params.n = work.n
    return params
