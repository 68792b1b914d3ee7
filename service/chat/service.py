"""The sentence of the system: render, budget, admit, generate."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from service.budget.ask import Ask
from service.budget.fit import fit
from service.budget.kv import kv_cost
from service.budget.limits import Allowance, in_force
from service.budget.plan import Budget
from service.chat.answer import Answer
from service.chat.explain import Explanation
from service.chat.life import Life
from service.chat.request import ChatRequest
from service.engine.protocol import Engine, Work
from service.engine.sampling import check_sampling
from service.errors import ModelNotFound, ServiceError, shown
from service.prompt.prompt import Prompt, RenderOptions
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.telemetry.observer import Observation


class Chat:
    """Opens answers. Everything that can refuse a request does so before `open` returns."""

    def __init__(self, settings: Settings, engine: Engine, renderer: Renderer, life: Life) -> None:
        self.model_name = settings.model_name
        self._settings = settings
        self._engine = engine
        self._renderer = renderer
        self._life = life
        self._answers: set[Answer] = set()
        self._since = int(time.time())
        self._allowance = Allowance(
            settings.max_input_tokens,
            settings.max_output_tokens,
            settings.input_policy,
            settings.output_policy,
        )

    async def open(self, request: ChatRequest, observation: Observation) -> Answer:
        """Start answering. The caller owns the answer and closes it; when refused, its observation.

        Raises:
            ServiceError: the request is refused; nothing is held any more.
        """
        record = observation.record
        record.stream, record.n = bool(request.stream), request.n or 1
        self._life.enter()
        try:
            self._check_model(request.model)
            prompt, record.budget = await self.fit(request)
            record.rendered_s = time.monotonic()
            work = self._work(request, prompt.token_ids, record.budget.max_output_tokens)
            record.admitted_s = time.monotonic()
            generation = await self._engine.generate(work)
        except BaseException:
            self._life.leave()
            raise
        record.submitted(work.n)
        answer = Answer(record.budget, generation, observation, self._left)
        self._answers.add(answer)
        return answer

    def end_all(self, error: ServiceError) -> None:
        """End every answer under way, with this error."""
        for answer in tuple(self._answers):
            answer.fail(error)

    def _left(self, answer: Answer) -> None:
        self._answers.discard(answer)
        self._life.leave()

    async def explain(self, request: ChatRequest) -> Explanation:
        """What `open` would hand to the engine, and why.

        Raises:
            ServiceError: `open` would refuse the request, with the same error.
        """
        with self.dry_run(request.model):
            prompt, budget = await self.fit(request)
            self._work(request, prompt.token_ids, budget.max_output_tokens)
            facts = self._engine.facts
            return Explanation(request, prompt, budget, kv_cost(facts.model_config, facts.kv_dtype))

    @contextmanager
    def dry_run(self, model: str | None) -> Iterator[None]:
        """Around what is answered without the engine: open to whom `open` is open.

        Raises:
            ModelNotFound, NotReady, Draining.
        """
        self._life.enter()
        try:
            self._check_model(model)
            yield
        finally:
            self._life.leave()

    async def fit(self, request: ChatRequest) -> tuple[Prompt, Budget]:
        """The prompt the model will see, history cut where the policy says so, and its budget.

        Raises:
            InvalidValue: it cannot be rendered, or does not fit.
        """
        facts = self._engine.facts
        limits = in_force(
            facts.context_window,
            self._allowance,
            truncation=request.truncation,
            default_output_tokens=self._settings.default_output_tokens,
            kv_capacity_tokens=facts.kv_capacity_tokens,
        )
        options = _options(request)
        ask = Ask(request.wanted_output_tokens, request.n or 1, request.output_field)
        return await fit(request.messages, limits, ask, lambda kept: self._renderer.render(kept, options))

    async def render(self, request: ChatRequest) -> Prompt:
        """The prompt of all messages, whether it fits or not.

        Raises:
            InvalidValue: it cannot be rendered.
        """
        return await self._renderer.render(request.messages, _options(request))

    def model_card(self) -> dict[str, Any]:
        """The entry of the model in `/v1/models`."""
        return {
            "id": self.model_name,
            "object": "model",
            "created": self._since,
            "owned_by": "twophase",
            "max_model_len": self._engine.facts.context_window,
        }

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            raise ModelNotFound(
                f"There is no model {shown(name)} here; this service has {self.model_name}.", param="model"
            )

    def _work(self, request: ChatRequest, token_ids: list[int], max_output_tokens: int) -> Work:
        facts = self._engine.facts
        n = request.n or 1
        sampling = request.sampling(facts.sampling_defaults)
        check_sampling(sampling, n, max_output_tokens, facts.vocab_size)
        return Work(uuid.uuid4().hex, token_ids, sampling, max_output_tokens, n, stream=bool(request.stream))


def _options(request: ChatRequest) -> RenderOptions:
    return RenderOptions(
        add_generation_prompt=request.adds_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        template_kwargs=request.chat_template_kwargs or {},
    )
