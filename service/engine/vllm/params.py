"""Our sampling in vLLM's words."""

from __future__ import annotations

from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from service.engine.protocol import Work
from service.engine.vllm.grammars import structured_outputs
from service.engine.vllm.translate import translate

FIRST_AND_LAST = 2**31 - 1  # a stream interval that no answer reaches


def sampling_params(work: Work) -> SamplingParams:
    """Parameters for one request.

    Raises:
        CallerError: vLLM does not take a value.
    """
    s = work.sampling
    try:
        params = SamplingParams(
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repetition_penalty=s.repetition_penalty,
            seed=s.seed,
            stop=list(s.stop),
            stop_token_ids=list(s.stop_token_ids),
            min_tokens=s.min_tokens,
            max_tokens=work.max_output_tokens,
            ignore_eos=s.ignore_eos,
            include_stop_str_in_output=s.include_stop_str_in_output,
            skip_special_tokens=s.skip_special_tokens,
            bad_words=list(s.bad_words),
            allowed_token_ids=None if s.allowed_token_ids is None else list(s.allowed_token_ids),
            logit_bias=dict(s.logit_bias) or None,
            structured_outputs=None if work.constraint is None else structured_outputs(work.constraint),
            thinking_token_budget=s.thinking_token_budget,
            logprobs=s.top_logprobs,
            flat_logprobs=True,
            output_kind=RequestOutputKind.DELTA,
            stream_interval=None if work.stream else FIRST_AND_LAST,
            skip_clone=True,  # made for this request alone
        )
    except VLLMClientError as exc:
        raise translate(exc) from exc
    params.n = (
        work.n
    )  # set afterwards: vLLM refuses n > 1 at temperature 0, where OpenAI gives n equal answers
    return params
