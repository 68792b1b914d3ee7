"""The sentence of the system: prepare, admit, generate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from service.admission.admission import Admission
from service.admission.quotas import Quotas, Visit
from service.admission.refusals import past_deadline
from service.admission.slot import Slot
from service.admission.tenant import Tenant
from service.budget.kv import kv_cost
from service.chat.answer import Answer
from service.chat.caller import Caller
from service.chat.explain import Explanation, Outlook
from service.chat.holding import Holding
from service.chat.life import Life
from service.chat.models import Models
from service.chat.prepare import Prepared, Preparing
from service.chat.request import ChatRequest
from service.engine.lora import Adapter
from service.engine.protocol import Engine, Generation
from service.errors import OURS, ServiceError
from service.prompt.memory import PromptMemory
from service.prompt.prompt import Prompt
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.telemetry.observer import Observation
from service.telemetry.record import RequestRecord


class Chat:
    """Opens answers. Everything that can refuse a request does so before `open` returns."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        renderer: Renderer,
        life: Life,
        quotas: Quotas,
        admission: Admission,
        memory: PromptMemory,
        models: Models,
    ) -> None:
        self.models = models
        self._max_running = settings.max_running
        self._engine = engine
        self._life = life
        self._quotas = quotas
        self._admission = admission
        self._memory = memory
        self._preparing = Preparing(settings, engine, renderer, memory)
        self._answers: set[Answer] = set()

    async def start(self) -> None:
        """Load the adapters into an engine that runs, and open its slots.

        Raises:
            StartError: the engine cannot use an adapter.
        """
        await self.models.start()
        facts = self._engine.facts
        self._admission.open(self._max_running or facts.max_running, facts.kv_capacity_tokens)
        self._memory.open(facts.block_size if facts.reuses_prefixes else 0)

    async def enter(self, tenant: Tenant) -> Visit:
        """Count a request in, before anything of its body is read. Whoever called closes the visit.

        Raises:
            NotReady, Draining, RateLimited.
        """
        self._life.check()
        return await self._quotas.enter(tenant)

    async def standing(self, tenant: Tenant) -> dict[str, str]:
        """The headers that say what is left of a tenant's quota."""
        return await self._quotas.standing(tenant)

    async def open(
        self, request: ChatRequest, caller: Caller, observation: Observation, visit: Visit
    ) -> Answer:
        """Start answering. Whoever called owns the answer and closes it; when refused, its observation.

        Raises:
            ServiceError: the request is refused; nothing is held any more.
        """
        record = observation.record
        record.stream, record.n = bool(request.stream), request.n or 1
        observation.asked(request.messages, record.n)
        self._life.enter()
        holding = Holding(self._life.leave, visit)
        try:
            adapter = self._chosen(request, record, holding)
            record.reasons = self._preparing.reasons(request)
            prepared = await self._prepared(request, caller, adapter)
            record.budget, record.rendered_s = prepared.budget, time.monotonic()
            holding.slot = await self._admit(prepared, caller, visit)
            record.admitted(holding.slot.prediction.first_token_s)
            self._life.check_moving()
            generation = await self._engine.generate(prepared.work)
        except BaseException as exc:
            holding.close(ours=isinstance(exc, OURS))
            raise
        return self._answer(prepared, generation, observation, holding, caller)

    def _answer(
        self,
        prepared: Prepared,
        generation: Generation,
        observation: Observation,
        holding: Holding,
        caller: Caller,
    ) -> Answer:
        """What runs, under its owner-to-be."""
        work, known, record = prepared.work, prepared.known, observation.record
        record.submitted(work.n)
        if known is not None:
            record.foreseen(known.forecast_tokens, known.miss())
            known.sent(work.n)
            holding.at_close(known.answered)
        answer = Answer(
            prepared.budget,
            generation,
            observation,
            holding,
            caller.deadline_s,
            None if known is None else known.replies,
            prepared.plan.readers,
            self._preparing.reading(prepared.request, work),
        )
        self._answers.add(answer)
        holding.at_close(lambda: self._answers.discard(answer))
        return answer

    def end_all(self, error: ServiceError) -> None:
        """End every answer under way, and the waiting for one, with this error."""
        self._admission.dismiss(lambda: error)
        for answer in tuple(self._answers):
            answer.fail(error)

    def drain(self) -> None:
        """Take nothing new; whoever waits for a slot is told so."""
        self._life.drain()
        self._admission.drain()

    async def explain(self, request: ChatRequest, tenant: Tenant) -> Explanation:
        """What `open` would hand to the engine, and why.

        Raises:
            ServiceError: `open` would refuse the request, with the same error.
        """
        with self.dry_run(request.model):
            began_s = time.monotonic()
            prepared = await self._preparing.prepare(request, tenant, self.models.find(request.model))
            render_s = time.monotonic() - began_s
            facts, known = self._engine.facts, prepared.known
            return Explanation(
                request,
                prepared.prompt,
                prepared.budget,
                kv_cost(facts.model_config, facts.kv_dtype),
                cache=None if known is None else Outlook(known.forecast_tokens, known.miss()),
                predicted=self._admission.predict(prepared.ticket()).report(render_s),
            )

    @contextmanager
    def dry_run(self, model: str | None) -> Iterator[None]:
        """Around what is answered without the engine: open to whom `open` is open.

        Raises:
            ModelNotFound, NotReady, Draining.
        """
        self._life.enter()
        try:
            self.models.find(model)
            yield
        finally:
            self._life.leave()

    @asynccontextmanager
    async def dry_visit(self, tenant: Tenant) -> AsyncIterator[None]:
        """Around all of a dry run, from its headers on: who asks too often is told so.

        Raises:
            NotReady, Draining, RateLimited.
        """
        self._life.check()
        visit = await self._quotas.enter(tenant, "dry runs")
        ours = False
        try:
            yield
        except OURS:
            ours = True
            raise
        finally:
            visit.close(ours=ours)

    async def render(self, request: ChatRequest, tenant: Tenant) -> Prompt:
        """The prompt of all messages, whether it fits or not.

        Raises:
            InvalidValue: it cannot be rendered.
        """
        return await self._preparing.render(request, tenant)

    def _chosen(self, request: ChatRequest, record: RequestRecord, holding: Holding) -> Adapter | None:
        """The adapter that the request names, which the engine keeps for as long as the request lasts."""
        adapter = self.models.find(request.model)
        if adapter is not None:
            record.model = adapter.name
            holding.at_close(self.models.use(adapter))
        return adapter

    async def _prepared(self, request: ChatRequest, caller: Caller, adapter: Adapter | None) -> Prepared:
        """In the time its caller gives: a new schema may take longer to try."""
        preparing = self._preparing.prepare(request, caller.tenant, adapter)
        if caller.deadline_s is None:
            return await preparing
        try:
            async with asyncio.timeout(max(0.0, caller.deadline_s - time.monotonic())):
                return await preparing
        except TimeoutError:
            raise past_deadline() from None

    async def _admit(self, prepared: Prepared, caller: Caller, visit: Visit) -> Slot:
        work = prepared.work
        await visit.reserve(len(work.token_ids), work.n * work.max_output_tokens)
        return await self._admission.admit(prepared.ticket(caller.deadline_s))
