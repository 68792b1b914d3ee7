"""`VllmEngine`: start, generate, close."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from typing import Any

import psutil
from vllm.inputs.engine import tokens_input
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from service.engine.protocol import (
    Delta,
    EngineFacts,
    EngineLoad,
    EngineStartError,
    Generation,
    Sink,
    Work,
)
from service.engine.sampling import Sampling
from service.engine.vllm.arguments import engine_args, facts_of, start_failure
from service.engine.vllm.generation import VllmGeneration
from service.engine.vllm.load import LoadKeeper
from service.engine.vllm.params import sampling_params
from service.engine.vllm.translate import translate
from service.errors import EngineUnavailable, ServiceError

WARM_UP_TOKENS = 4


class VllmEngine:
    """One AsyncLLM. `args` are vLLM's engine arguments; the rest of the configuration is its own."""

    def __init__(self, model: str, args: Mapping[str, Any], max_model_len: int | None = None) -> None:
        self._args = engine_args(model, args, max_model_len)
        self._llm: AsyncLLM | None = None
        self._facts: EngineFacts | None = None
        self._load = LoadKeeper()
        self._pings = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def facts(self) -> EngineFacts:
        if self._facts is None:
            raise EngineUnavailable("The engine is not running.")
        return self._facts

    @property
    def load(self) -> EngineLoad:
        return self._load.load(self.facts.kv_capacity_tokens)

    @property
    def steps(self) -> int:
        return self._load.steps + self._pings

    async def ping(self) -> None:
        self.check()
        assert self._llm is not None
        try:
            await self._llm.is_sleeping()  # the cheapest question its process answers
        except Exception as exc:
            raise translate(exc) from exc
        self._pings += 1

    async def start(self) -> None:
        try:
            self._llm = await asyncio.to_thread(
                AsyncLLM.from_engine_args,
                self._args,
                usage_context=UsageContext.OPENAI_API_SERVER,
                stat_loggers=[self._load],
            )
            self._facts = facts_of(self._llm)
            await self._warm_up()
            # The model's objects stay for good: the collector, which would halt the event loop for a
            # fifth of a second to walk them, need not look at them again.
            gc.collect()
            gc.freeze()
        except ServiceError as exc:
            raise EngineStartError(f"the engine started but could not generate: {exc.message}") from exc
        except Exception as exc:
            raise EngineStartError(start_failure(exc)) from exc

    async def generate(self, work: Work) -> Generation:
        self.check()
        assert self._llm is not None
        params = sampling_params(work)
        try:
            collector = await self._llm.add_request(
                work.id,
                tokens_input(work.token_ids, cache_salt=work.cache_salt),
                params,
                priority=work.priority,
            )
        except Exception as exc:
            raise translate(exc) from exc
        except asyncio.CancelledError:
            self._abort(work.id, internal=False)
            raise
        return VllmGeneration(collector, self._abort)

    def cancel_start(self) -> None:
        # The start waits in a thread for processes it has made; without them it gives up.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

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
