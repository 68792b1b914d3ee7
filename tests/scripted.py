"""An engine whose tokens, pauses and faults a test writes down; real in everything the protocol says."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from service.engine.lora import Adapter
from service.engine.protocol import (
    CallPlan,
    Constraint,
    Delta,
    Engine,
    EngineClock,
    EngineFacts,
    EngineLoad,
    Finish,
    Generation,
    Thinking,
    Work,
)
from service.engine.vllm.reasoning import ReasoningParser
from service.errors import EngineUnavailable, ServiceError

Step = str | float | ServiceError | Delta
"""Text of one token, a pause in seconds, a failure, or a whole delta."""


class ScriptedEngine(Engine):
    """Plays one script per generation, in the order given; without one it says one word to the end."""

    def __init__(self, context_window: int = 1024, kv_capacity_tokens: int = 0) -> None:
        self._facts = EngineFacts(context_window, 49_152, kv_capacity_tokens, 16, "scripted")
        self.reasoning: ReasoningParser | None = None
        self.bounds_thinking = False
        self.max_adapters = 4
        self.adapters: dict[int, Adapter] = {}
        self.adapter_refusal: ServiceError | None = None
        self._scripts: deque[list[Step]] = deque()
        self.started: list[Work] = []
        self.aborted: list[str] = []
        self.refusal: ServiceError | None = None
        self.dead = False
        self.frozen = False
        self.trial_s = 0.0  # to try a constraint
        self._steps = 0
        self.start_s = 0.0
        self.start_failure: Exception | None = None

    def script(self, *steps: Step) -> None:
        """What the next generation without a script does."""
        self._scripts.append(list(steps))

    @property
    def facts(self) -> EngineFacts:
        return replace(
            self._facts,
            reasons=self.reasoning is not None,
            bounds_thinking=self.bounds_thinking,
            max_adapters=self.max_adapters,
        )

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self.started) - len(self.aborted))

    @property
    def steps(self) -> int:
        return self._steps

    async def ping(self) -> None:
        self.check()
        while self.frozen:  # noqa: ASYNC110  # a test sets it from another thread
            await asyncio.sleep(0.01)
        self._steps += 1

    async def start(self) -> None:
        began = time.monotonic()
        while time.monotonic() < began + self.start_s:  # noqa: ASYNC110  # `cancel_start` shortens it
            await asyncio.sleep(0.01)
        if self.start_failure:
            raise self.start_failure

    async def check_constraint(self, constraint: Constraint, tenant: str) -> None:
        """Everything passes, after a while; what cannot be compiled is for tests on the real engine."""
        await asyncio.sleep(self.trial_s)

    def plan_calls(
        self, tools: Sequence[Mapping[str, Any]], n: int, *, parallel: bool, stream: bool
    ) -> CallPlan:
        raise NotImplementedError("the scripted engine has no tool parser")

    def thinkings(
        self, token_ids: Sequence[int], n: int, template_kwargs: Mapping[str, Any]
    ) -> Sequence[Thinking]:
        return self.reasoning.thinkings(token_ids, n, template_kwargs) if self.reasoning else ()

    async def load_adapter(self, adapter: Adapter) -> None:
        self.check()
        if self.adapter_refusal is not None:
            raise self.adapter_refusal
        assert adapter.number not in self.adapters and len(self.adapters) < self.max_adapters
        self.adapters[adapter.number] = adapter

    async def unload_adapter(self, adapter: Adapter) -> None:
        self.check()
        del self.adapters[adapter.number]

    async def generate(self, work: Work) -> Generation:
        self.check()
        if self.refusal is not None:
            raise self.refusal
        self.started.append(work)
        word = "word "
        if work.adapter is not None:
            assert self.adapters[work.adapter.number] is work.adapter
            word = f"{work.adapter.identity} "
        steps = self._scripts.popleft() if self._scripts else [word] * work.max_output_tokens
        return _ScriptedGeneration(self, work, steps)

    def cancel_start(self) -> None:
        self.start_s = 0.0

    def check(self) -> None:
        if self.dead:
            raise EngineUnavailable("The engine is not running; try again later.")

    async def aclose(self) -> None:
        self.dead = True


class _ScriptedGeneration(Generation):
    def __init__(self, engine: ScriptedEngine, work: Work, steps: Iterable[Step]) -> None:
        super().__init__()
        self._engine = engine
        self._work = work
        self._queued_s = time.monotonic()
        self._task: asyncio.Task[None] | None = asyncio.ensure_future(self._play(list(steps)))

    def abort(self) -> None:
        if self._task is not None and not self._task.done():
            self._engine.aborted.append(self._work.id)
            self._task.cancel()

    async def _play(self, steps: list[Step]) -> None:
        for index in range(self._work.n):
            if not await self._play_choice(index, steps):
                return

    async def _play_choice(self, index: int, steps: list[Step]) -> bool:
        said = 0
        first_s = 0.0
        for position, step in enumerate(steps, start=1):
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, ServiceError):
                self._deliver_failure(step)
                return False
            else:
                await asyncio.sleep(0)
                said += 1
                first_s = first_s or time.monotonic()
                self._deliver(self._delta(index, step, said, position == len(steps), first_s))
                if said == self._work.max_output_tokens:
                    break
        return True

    def _delta(self, index: int, step: str | Delta, said: int, last: bool, first_s: float) -> Delta:
        if isinstance(step, Delta):
            return step
        finish: Finish | None = "length" if said == self._work.max_output_tokens else "stop" if last else None
        clock = EngineClock(self._queued_s, self._queued_s, first_s, time.monotonic(), 0, 0)
        return Delta(index, step, [said], finish, clock if finish or said == 1 else None)
