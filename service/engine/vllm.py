"""vLLM's AsyncLLM behind the engine protocol. No other module of the service imports vLLM."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

from service.engine.memory import folder_weights_bytes, free_bytes, kv_cache_bytes
from service.engine.protocol import (
    Delta,
    EngineClock,
    EngineFacts,
    EngineStartError,
    Generation,
    Sink,
    Work,
)
from service.engine.sampling import Sampling
from service.errors import EngineUnavailable, InternalFault, InvalidValue, Overloaded, ServiceError, shown
from service.settings import nearest

# No phoning home, and no log set-up of its own: both are the operator's to decide.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMServerError
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.version import __version__ as vllm_version

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 4
FIRST_AND_LAST = 2**31 - 1  # a stream interval that no answer reaches
ADVISED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # never a token limit


class VllmEngine:
    """One AsyncLLM. `args` are vLLM's engine arguments; the rest of the configuration is its own."""

    def __init__(self, model: str, args: Mapping[str, Any], max_model_len: int | None = None) -> None:
        self._args = _engine_args(model, args, max_model_len)
        self._llm: AsyncLLM | None = None
        self._facts: EngineFacts | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def facts(self) -> EngineFacts:
        if self._facts is None:
            raise EngineUnavailable("The engine is not running.")
        return self._facts

    async def start(self) -> None:
        try:
            self._llm = await asyncio.to_thread(
                AsyncLLM.from_engine_args, self._args, usage_context=UsageContext.OPENAI_API_SERVER
            )
            self._facts = _facts(self._llm)
            await self._warm_up()
        except ServiceError as exc:
            raise EngineStartError(f"the engine started but could not generate: {exc.message}") from exc
        except Exception as exc:
            raise EngineStartError(_start_failure(exc)) from exc

    async def generate(self, work: Work) -> Generation:
        self.check()
        assert self._llm is not None
        params = _sampling_params(work)
        try:
            collector = await self._llm.add_request(work.id, tokens_input(work.token_ids), params)
        except Exception as exc:
            raise translate(exc) from exc
        except asyncio.CancelledError:
            self._abort(work.id, internal=False)
            raise
        return _VllmGeneration(collector, self)

    def check(self) -> None:
        if self._llm is None or self._llm.errored:
            raise EngineUnavailable("The engine is not running; try again later.")

    async def aclose(self) -> None:
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        await asyncio.to_thread(llm.shutdown)

    async def _warm_up(self) -> None:
        prompt = list(range(1, min(17, self.facts.vocab_size, self.facts.context_window - WARM_UP_TOKENS)))
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        done = _Done()
        generation = await self.generate(Work("warm-up", prompt, sampling, WARM_UP_TOKENS))
        generation.listen(done)
        await done.wait()

    def _abort(self, request_id: str, *, internal: bool = True) -> None:
        if self._llm is not None:
            task = asyncio.ensure_future(self._llm.abort(request_id, internal=internal))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _VllmGeneration(Generation):
    """Takes the place of vLLM's collector: what the output loop puts goes straight to the sink."""

    def __init__(self, collector: Any, engine: VllmEngine) -> None:
        super().__init__()
        self._id = collector.request_id
        self._engine = engine
        self._begun: set[int] = set()  # choices that have had their first delta
        self._running = True
        collector.put = self._put
        if collector.output is not None:  # made while the request was still being sent
            self._put(collector.output)

    def abort(self) -> None:
        if self._running:
            self._running = False
            self._engine._abort(self._id)

    def _put(self, output: RequestOutput | Exception) -> None:
        """Called by vLLM's output loop, which serves every request: nothing may be raised into it."""
        if not self._running:
            return
        try:
            if isinstance(output, Exception):
                self._fail(translate(output))
            else:
                self._take(output)
        except Exception:
            log.exception("a delta could not be handed over; its request is ended")
            self.abort()

    def _take(self, output: RequestOutput) -> None:
        for choice in output.outputs:
            index, finish = choice.index, choice.finish_reason
            delta = Delta(index, choice.text, choice.token_ids)
            if finish is not None or index not in self._begun:
                self._begun.add(index)
                delta.clock = _clock(output)
                if finish == "stop" or finish == "length":
                    delta.finish = finish
                elif finish is not None:
                    return self._fail(EngineUnavailable(f"The engine ended this answer early ({finish})."))
            self._hand_over(delta)
        if output.finished:
            self._running = False

    def _fail(self, error: ServiceError) -> None:
        self.abort()
        self._hand_over(error)


class _Done(Sink):
    """Waits for the end of a generation."""

    def __init__(self) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, delta: Delta) -> None:
        if delta.finish is not None:
            self._end.set_result(None)

    def fail(self, error: ServiceError) -> None:
        self._end.set_exception(error)

    async def wait(self) -> None:
        await self._end


def translate(exc: BaseException) -> ServiceError:
    """The one place where vLLM's errors become ours."""
    if isinstance(exc, ServiceError):
        return exc
    if isinstance(exc, VLLMClientError):
        param = getattr(exc, "parameter", None)  # only some of vLLM's client errors have one
        reason = exc.args[0] if exc.args else "no reason given"
        return InvalidValue(f"The engine does not accept this request: {shown(reason, 200)}", param=param)
    if isinstance(exc, GracefulHTTPError):
        return Overloaded("The engine's queue is full; try again later.")
    if isinstance(exc, EngineDeadError):
        return EngineUnavailable("The engine has stopped; try again later.")
    if isinstance(exc, VLLMServerError):
        return EngineUnavailable("The engine failed on this request; try again later.")
    return InternalFault("The engine failed on this request for a reason that is in the server's log.")


def _engine_args(model: str, args: Mapping[str, Any], max_model_len: int | None) -> AsyncEngineArgs:
    """The operator's arguments over our defaults.

    Raises:
        EngineStartError: for an argument that vLLM does not have, or a value it does not take.
    """
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(set(args) - known):
        raise EngineStartError(
            "engine_args: "
            + "; ".join(f"{name} is no vLLM engine argument{nearest(name, known)}" for name in unknown)
        )
    chosen: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": False}
    if current_platform.is_cpu():
        chosen["enforce_eager"] = True  # compiling takes minutes and gains 10 to 15 % on a CPU
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            chosen["kv_cache_memory_bytes"] = kv_cache_bytes(free_bytes(), folder_weights_bytes(model))
    if max_model_len is not None:
        chosen["max_model_len"] = max_model_len
    try:
        return AsyncEngineArgs(**{**chosen, **args, "model": model})
    except Exception as exc:
        raise EngineStartError(f"engine_args: {shown(str(exc), 400)}") from exc


def _facts(llm: AsyncLLM) -> EngineFacts:
    config = llm.vllm_config
    advised = config.model_config.get_diff_sampling_param()
    return EngineFacts(
        context_window=config.model_config.max_model_len,
        vocab_size=config.model_config.get_vocab_size(),
        kv_capacity_tokens=int(config.cache_config.kv_cache_size_tokens or 0),
        block_size=int(config.cache_config.block_size or 0),
        version=vllm_version,
        sampling_defaults={name: value for name, value in advised.items() if name in ADVISED},
    )


def _sampling_params(work: Work) -> SamplingParams:
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


def _clock(output: RequestOutput) -> EngineClock | None:
    stats = output.metrics
    if stats is None:
        return None
    return EngineClock(
        queued_s=stats.queued_ts,
        scheduled_s=stats.scheduled_ts,
        first_token_s=stats.first_token_ts,
        last_token_s=stats.last_token_ts,
        cached_tokens=output.num_cached_tokens or 0,
        preemptions=stats.num_preemptions,
    )


def _start_failure(exc: Exception) -> str:
    reason = shown(" ".join(str(exc).split()) or type(exc).__name__, 600)
    if "initialization failed" in reason:
        return (
            f"the engine did not start: {reason} The engine's own report stands above. When memory is short, "
            "lower TWOPHASE_MAX_MODEL_LEN, or set kv_cache_memory_bytes in TWOPHASE_ENGINE_ARGS."
        )
    return f"the engine did not start: {reason}"
