"""The sentence of the system: render, budget, admit, generate."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from service.admission.admission import Admission
from service.admission.load import Load
from service.admission.quotas import Quotas, Visit
from service.admission.slot import Slot, Ticket
from service.admission.tenant import Tenant
from service.budget.ask import Ask
from service.budget.fit import fit
from service.budget.kv import kv_cost
from service.budget.limits import Allowance, in_force
from service.budget.plan import Budget
from service.chat.answer import Answer
from service.chat.caller import Caller
from service.chat.demands import call_plan
from service.chat.effort import check_thinking, template_arguments
from service.chat.explain import Explanation, Outlook
from service.chat.holding import Holding
from service.chat.life import Life
from service.chat.models import Models
from service.chat.reading import Reading
from service.chat.recall import Recall, recall
from service.chat.request import ChatRequest
from service.chat.salt import Salt
from service.chat.spelling import Alphabet
from service.engine.lora import Adapter
from service.engine.protocol import CallPlan, Engine, Work
from service.engine.sampling import Sampling, check_sampling
from service.errors import OURS, InvalidValue, ServiceError
from service.prompt.memory import PromptMemory
from service.prompt.prompt import Prompt, RenderOptions
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
        self._settings = settings
        self._engine = engine
        self._renderer = renderer
        self._life = life
        self._quotas = quotas
        self._admission = admission
        self._answers: set[Answer] = set()
        self._salt = Salt(settings.cache_secret)
        self._memory = memory
        self._allowance = Allowance(
            settings.max_input_tokens,
            settings.max_output_tokens,
            settings.input_policy,
            settings.output_policy,
        )

    async def start(self) -> None:
        """Load the adapters into an engine that runs, and open its slots.

        Raises:
            StartError: the engine cannot use an adapter.
        """
        await self.models.start()
        facts = self._engine.facts
        self._admission.open(self._settings.max_running or facts.max_running, facts.kv_capacity_tokens)
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
            self._check(request, caller.tenant)
            record.reasons = self._reasons(request)
            plan = await self._plan(request)
            prompt, record.budget = budgeted = await self.fit(request, caller.tenant)
            work = self._work(request, caller.tenant, adapter, *budgeted, plan)
            await self._check_words(work.sampling)
            known = await self._recall(request, caller.tenant, work, *budgeted)
            record.rendered_s = time.monotonic()
            holding.slot = await self._admit(work, caller, visit, known)
            record.admitted(holding.slot.prediction.first_token_s)
            generation = await self._engine.generate(work)
        except BaseException as exc:
            holding.close(ours=isinstance(exc, OURS))
            raise
        record.submitted(work.n)
        if known is not None:
            record.foreseen(known.forecast_tokens, known.miss())
            known.sent(work.n)
        answer = Answer(
            record.budget,
            generation,
            observation,
            holding,
            caller.deadline_s,
            None if known is None else known.replies,
            plan.readers,
            self._reading(request, work),
        )
        self._answers.add(answer)
        holding.at_close(lambda: self._answers.discard(answer))
        if known is not None:
            holding.at_close(known.answered)
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
            self._check(request, tenant)
            plan = await self._plan(request)
            began_s = time.monotonic()
            prompt, budget = await self.fit(request, tenant)
            work = self._work(request, tenant, self.models.find(request.model), prompt, budget, plan)
            await self._check_words(work.sampling)
            known = await self._recall(request, tenant, work, prompt, budget)
            render_s = time.monotonic() - began_s
            facts = self._engine.facts
            return Explanation(
                request,
                prompt,
                budget,
                kv_cost(facts.model_config, facts.kv_dtype),
                cache=None if known is None else Outlook(known.forecast_tokens, known.miss()),
                predicted=self._admission.predict(_ticket(tenant, work, known)).report(render_s),
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

    async def fit(self, request: ChatRequest, tenant: Tenant) -> tuple[Prompt, Budget]:
        """The prompt the model will see, history cut where the policy says so, and its budget.

        Raises:
            InvalidValue: it cannot be rendered, or does not fit.
        """
        facts = self._engine.facts
        limits = in_force(
            facts.context_window,
            self._allowance,
            tenant.allowance,
            truncation=request.truncation,
            default_output_tokens=self._settings.default_output_tokens,
            kv_capacity_tokens=facts.kv_capacity_tokens,
        )
        options = self._options(request, tenant)
        ask = Ask(request.wanted_output_tokens, request.n or 1, request.output_field)
        most = limits.input.tokens

        async def rendered(messages: Sequence[Mapping[str, Any]]) -> Prompt:
            if request.written is None:
                return await self._renderer.render(messages, options, most)
            return await self._renderer.as_written(request.written, facts.vocab_size, most)

        return await fit(request.messages, limits, ask, rendered)

    async def render(self, request: ChatRequest, tenant: Tenant) -> Prompt:
        """The prompt of all messages, whether it fits or not.

        Raises:
            InvalidValue: it cannot be rendered.
        """
        return await self._renderer.render(request.messages, self._options(request, tenant))

    async def _plan(self, request: ChatRequest) -> CallPlan:
        """Nothing is held yet but the tenant's visit: a grammar that takes long to check keeps no slot."""
        return await call_plan(request, self._engine, shows_tools=self._renderer.shows_tools)

    def _chosen(self, request: ChatRequest, record: RequestRecord, holding: Holding) -> Adapter | None:
        """The adapter that the request names, which the engine keeps for as long as the request lasts."""
        adapter = self.models.find(request.model)
        if adapter is not None:
            record.model = adapter.name
            holding.at_close(self.models.use(adapter))
        return adapter

    def _check(self, request: ChatRequest, tenant: Tenant) -> None:
        check_thinking(request, self._engine.facts)
        if request.priority is not None and request.priority != tenant.priority:
            tenant.require("priority")

    async def _check_words(self, sampling: Sampling) -> None:
        """When all that is allowed is also banned, no token is left to choose."""
        if not sampling.allowed_token_ids or not sampling.bad_words:
            return
        banned: set[int] = set()
        for word in sampling.bad_words:
            for spelled in (word.lstrip(), " " + word.lstrip()):
                ids = await self._renderer.tokenize(spelled, add_special_tokens=False)
                banned.update(ids if len(ids) == 1 else ())
        if banned.issuperset(sampling.allowed_token_ids):
            raise InvalidValue("bad_words bans every token that allowed_token_ids allows.", param="bad_words")

    async def _admit(self, work: Work, caller: Caller, visit: Visit, known: Recall | None) -> Slot:
        await visit.reserve(len(work.token_ids), work.n * work.max_output_tokens)
        return await self._admission.admit(_ticket(caller.tenant, work, known, caller.deadline_s))

    async def _recall(
        self, request: ChatRequest, tenant: Tenant, work: Work, prompt: Prompt, budget: Budget
    ) -> Recall | None:
        group, spelling = work.cache_salt or "", self._renderer.vocabulary.bytes_by_id
        return await recall(
            self._memory, request, prompt, budget, tenant=tenant, group=group, spelling=spelling
        )

    def _reading(self, request: ChatRequest, work: Work) -> Reading | None:
        """What brings text and tokens together, where that has to be known."""
        arguments = self._settings.template_kwargs | dict(request.chat_template_kwargs or {})
        thinkings = (
            self._engine.thinkings(work.token_ids, work.n, arguments) if self._reasons(request) else ()
        )
        if work.sampling.top_logprobs is None and not thinkings:
            return None
        vocabulary = self._renderer.vocabulary
        unwanted = frozenset[int]() if request.skip_special_tokens is False else vocabulary.special_ids
        hidden = vocabulary.special_ids if work.sampling.skip_special_tokens else frozenset[int]()
        return Reading(Alphabet(vocabulary.bytes_by_id, hidden), work.n, thinkings, unwanted)

    def _reasons(self, request: ChatRequest) -> bool:
        """Whether thinking is told from answer: a text that goes on as it was written has neither."""
        return self._engine.facts.reasons and request.written is None

    def _work(
        self,
        request: ChatRequest,
        tenant: Tenant,
        adapter: Adapter | None,
        prompt: Prompt,
        budget: Budget,
        plan: CallPlan,
    ) -> Work:
        facts = self._engine.facts
        n, most = request.n or 1, budget.max_output_tokens
        sampling = request.sampling(facts.sampling_defaults)
        marked = facts.reasons_in_special_tokens and self._reasons(request)
        if not plan.skip_special_tokens or marked:  # some models mark calls by them
            sampling = replace(sampling, skip_special_tokens=False)
        check_sampling(sampling, n, most, facts.vocab_size)
        return Work(
            uuid.uuid4().hex,
            prompt.token_ids,
            sampling,
            most,
            n,
            stream=bool(request.stream),
            constraint=plan.constraint,
            priority=tenant.priority if request.priority is None else request.priority,
            cache_salt=self._salt.of(tenant.cache_group, None if adapter is None else adapter.identity),
            adapter=adapter,
        )

    def _options(self, request: ChatRequest, tenant: Tenant) -> RenderOptions:
        return RenderOptions(
            add_generation_prompt=request.adds_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=template_arguments(request, self._renderer.template_text),
            tools=request.offered or None,
            cache_group=tenant.cache_group,
        )


def _ticket(tenant: Tenant, work: Work, known: Recall | None, deadline_s: float | None = None) -> Ticket:
    cached = None if known is None else known.forecast_tokens
    load = Load(len(work.token_ids), work.max_output_tokens, work.n, cached)
    return Ticket(tenant.name, load, work.priority, deadline_s)
