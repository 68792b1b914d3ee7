"""From a checked request to what the engine would be given: rendered, fitted to its budget, recalled."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.admission.load import Load
from service.admission.slot import Ticket
from service.admission.tenant import Tenant
from service.budget.ask import Ask
from service.budget.fit import fit
from service.budget.limits import Allowance, in_force
from service.budget.plan import Budget
from service.chat.demands import call_plan
from service.chat.effort import check_thinking, template_arguments
from service.chat.reading import Reading
from service.chat.recall import Recall, recall
from service.chat.request import ChatRequest
from service.chat.salt import Salt
from service.chat.spelling import Alphabet
from service.engine.lora import Adapter
from service.engine.protocol import CallPlan, Engine, Work
from service.engine.sampling import Sampling, check_sampling
from service.errors import InvalidValue
from service.prompt.memory import PromptMemory
from service.prompt.prompt import Prompt, RenderOptions
from service.prompt.renderer import Renderer
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with everything found out about it that needs no place in the engine."""

    request: ChatRequest
    tenant: Tenant
    plan: CallPlan
    prompt: Prompt
    budget: Budget
    work: Work
    known: Recall | None  # of its prompt; None where nothing is remembered

    def ticket(self, deadline_s: float | None = None) -> Ticket:
        """What admission has to know of it."""
        cached = None if self.known is None else self.known.forecast_tokens
        load = Load(len(self.work.token_ids), self.work.max_output_tokens, self.work.n, cached)
        return Ticket(self.tenant.name, load, self.work.priority, deadline_s)


class Preparing:
    """Prepares requests. Nothing is held meanwhile: what takes long keeps no slot."""

    def __init__(self, settings: Settings, engine: Engine, renderer: Renderer, memory: PromptMemory) -> None:
        self._settings = settings
        self._engine = engine
        self._renderer = renderer
        self._memory = memory
        self._salt = Salt(settings.cache_secret)
        self._allowance = Allowance(
            settings.max_input_tokens,
            settings.max_output_tokens,
            settings.input_policy,
            settings.output_policy,
        )

    async def prepare(self, request: ChatRequest, tenant: Tenant, adapter: Adapter | None) -> Prepared:
        """Everything that can refuse a request for what it is.

        Raises:
            ServiceError: it is refused.
        """
        self._check(request, tenant)
        plan = await call_plan(request, self._engine, tenant.name, shows_tools=self._renderer.shows_tools)
        prompt, budget = await self.fit(request, tenant)
        work = self._work(request, tenant, adapter, prompt, budget, plan)
        await self._check_words(work.sampling)
        known = await self._recall(request, tenant, work, prompt, budget)
        return Prepared(request, tenant, plan, prompt, budget, work, known)

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

    def reading(self, request: ChatRequest, work: Work) -> Reading | None:
        """What brings text and tokens together, where that has to be known."""
        arguments = self._settings.template_kwargs | dict(request.chat_template_kwargs or {})
        thinkings = self._engine.thinkings(work.token_ids, work.n, arguments) if self.reasons(request) else ()
        if work.sampling.top_logprobs is None and not thinkings:
            return None
        vocabulary = self._renderer.vocabulary
        unwanted = frozenset[int]() if request.skip_special_tokens is False else vocabulary.special_ids
        hidden = vocabulary.special_ids if work.sampling.skip_special_tokens else frozenset[int]()
        return Reading(Alphabet(vocabulary.bytes_by_id, hidden), work.n, thinkings, unwanted)

    def reasons(self, request: ChatRequest) -> bool:
        """Whether thinking is told from answer: a text that goes on as it was written has neither."""
        return self._engine.facts.reasons and request.written is None

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

    async def _recall(
        self, request: ChatRequest, tenant: Tenant, work: Work, prompt: Prompt, budget: Budget
    ) -> Recall | None:
        group, spelling = work.cache_salt or "", self._renderer.vocabulary.bytes_by_id
        return await recall(
            self._memory, request, prompt, budget, tenant=tenant, group=group, spelling=spelling
        )

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
        marked = facts.reasons_in_special_tokens and self.reasons(request)
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
