"""The room's front: messages in, `Prompt` out. Large work goes to threads, small work is done at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from service.errors import FarTooLong, InvalidTemplate, InvalidValue
from service.prompt.encoders import PieceEncoder, WholeEncoder
from service.prompt.layout import Run, runs_of
from service.prompt.loading import ModelText, load_model_text
from service.prompt.messages import Message, Reader, check_encodable
from service.prompt.pieces import PieceCache
from service.prompt.piecewise import Piecewise, Plan
from service.prompt.prompt import Prompt, RenderOptions, Segment
from service.prompt.rehearsal import form_of, holds_piecewise, shows_tools
from service.prompt.sandbox import RenderTooLong
from service.prompt.template import ChatTemplate
from service.prompt.vocabulary import Vocabulary, any_of

CACHE_BYTES = 64 * 2**20
RENDER_LIMIT_S = 1.0
# What the event loop may do itself: work that is over in about the time it takes to hand it to a thread and
# back, or that is cut off by then.
LOOP_LIMIT_S = 0.005
LOOP_WEIGHT = 65_536
LOOP_UNKNOWN = 4_096
LOOP_RUNS = 2_048
PART_WEIGHT = 200
THREADS = 4

T = TypeVar("T")


class Renderer:
    """Renders and tokenizes conversations for one model."""

    def __init__(
        self,
        model: ModelText,
        *,
        template_kwargs: Mapping[str, Any],
        cache_bytes: int = CACHE_BYTES,
        control_tokens: Literal["text", "reject"] = "text",
    ) -> None:
        vocabulary = Vocabulary(model.tokenizer, model.templates.values())
        pieces = PieceEncoder(vocabulary)
        template = ChatTemplate(model.templates, model.specials, template_kwargs)
        form = form_of(template)
        trial = Piecewise(pieces, PieceCache(2**20))
        self.is_piecewise = holds_piecewise(template.read_by(Reader(form)), trial, model.tokenizer)
        refused = list(vocabulary.controls)
        if self.is_piecewise and control_tokens == "text":
            refused = pieces.unspeakable()
        self.template = template.read_by(Reader(form, any_of(refused) if refused else None))
        self.shows_tools = shows_tools(self.template)
        self.template_text = "\n".join(model.templates.values())
        self.vocabulary = vocabulary
        self._tokenizer = model.tokenizer
        self._cache = PieceCache(cache_bytes)
        encoder = pieces if self.is_piecewise else WholeEncoder(model.tokenizer, vocabulary)
        self._piecewise = Piecewise(encoder, self._cache)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompt")

    @classmethod
    def load(
        cls,
        model: str,
        *,
        chat_template: Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        tokenizer: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        control_tokens: Literal["text", "reject"] = "text",
    ) -> Renderer:
        """The renderer of a model folder or id. Blocking, for seconds.

        Raises:
            TemplateUnavailable: if there is no usable tokenizer or chat template.
        """
        text = load_model_text(
            tokenizer or model,
            chat_template=chat_template,
            trust_remote_code=trust_remote_code,
            revision=revision,
        )
        return cls(
            text,
            template_kwargs=template_kwargs or {},
            cache_bytes=cache_bytes,
            control_tokens=control_tokens,
        )

    @property
    def cache_used_bytes(self) -> int:
        """Memory the known pieces take."""
        return self._cache.used_bytes

    async def render(
        self, messages: Sequence[Message], options: RenderOptions, most_tokens: int | None = None
    ) -> Prompt:
        """The prompt of a conversation.

        Raises:
            FarTooLong: its mere length shows that it has more than `most_tokens`; nothing was tokenized.
            InvalidValue: for a message or option that cannot be used, naming it.
            InvalidTemplate: if the chat template refuses these messages, fails on them, or takes too long.
        """
        if _weight(messages) + _weight(options.tools) > LOOP_WEIGHT:
            return await self._done(True, lambda: self.render_blocking(messages, options, most_tokens))
        try:
            text = self.template.render(messages, options, LOOP_LIMIT_S)
        except RenderTooLong:
            return await self._done(True, lambda: self.render_blocking(messages, options, most_tokens))
        self._check_length(text, most_tokens)
        plan = self._piecewise.plan(text, runs_of(text), options.cache_group)
        large = plan.unknown_characters > LOOP_UNKNOWN or len(plan.runs) > LOOP_RUNS
        return await self._done(large, lambda: self._prompt(text, plan, len(messages)))

    def render_blocking(
        self, messages: Sequence[Message], options: RenderOptions, most_tokens: int | None = None
    ) -> Prompt:
        """`render`, in the calling thread."""
        try:
            text = self.template.render(messages, options, RENDER_LIMIT_S)
        except RenderTooLong:
            reason = "The chat template takes too long to render these messages."
            raise InvalidTemplate(reason, param="messages") from None
        self._check_length(text, most_tokens)
        return self._prompt(
            text, self._piecewise.plan(text, runs_of(text), options.cache_group), len(messages)
        )

    async def as_written(self, prompt: str | Sequence[int], vocab_size: int, most_tokens: int) -> Prompt:
        """A prompt that goes past the template: text as it stands, or token ids.

        Raises:
            FarTooLong: see `render`. InvalidValue: it is empty, or holds an id that the model does not have.
        """
        text = prompt if isinstance(prompt, str) else ""
        self._check_length(text, most_tokens)
        ids = await self.tokenize(text) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise InvalidValue("prompt has no tokens; send some text.", param="prompt")
        if (highest := max(ids)) >= vocab_size:
            reason = f"prompt holds the token id {highest}; this model's ids end at {vocab_size - 1}."
            raise InvalidValue(reason, param="prompt")
        return Prompt(ids, (Segment(0, "content", 0, len(ids)),), 1, text)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text as it stands: here a control token's name is that token."""

        def ids() -> list[int]:
            check_encodable(text, "prompt")
            # By the batch calls, here and below: those for one text keep every other thread waiting.
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

        return await self._done(len(text) > LOOP_UNKNOWN, ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of some ids, control tokens by their names."""

        def text() -> str:
            if any(not 0 <= at < len(self.vocabulary.bytes_by_id) for at in ids):
                raise InvalidValue("tokens holds an id this model does not have.", param="tokens")
            return self._tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]

        return await self._done(len(ids) > LOOP_UNKNOWN, text)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """How the vocabulary writes each id."""
        return [self._tokenizer.id_to_token(at) or "" for at in ids]

    def close(self) -> None:
        """Let the threads go; what still runs in them is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_length(self, text: str, most_tokens: int | None) -> None:
        """Characters are no more than bytes, and a token stands for no more bytes than the longest."""
        longest = self.vocabulary.longest
        if most_tokens is not None and 0 < longest * most_tokens < len(text):
            raise FarTooLong(len(text) // longest, len(text), longest * most_tokens)

    def _prompt(self, text: str, plan: Plan, messages: int) -> Prompt:
        self._piecewise.fill(plan)
        ids, counts = plan.assembled()
        if not ids:
            raise InvalidValue("These messages come to no token at all; say something.", param="messages")
        return Prompt(ids, tuple(_segments(plan.runs, counts)), messages, str.__str__(text))

    async def _done(self, large: bool, work: Callable[[], T]) -> T:
        """What `work` gives; large work is done in a thread."""
        if not large:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _segments(runs: Sequence[Run], counts: Sequence[int]) -> list[Segment]:
    """Stretches of tokens of one origin; runs in which no token lies have none."""
    segments: list[Segment] = []
    at = 0
    for run, count in zip(runs, counts, strict=True):
        if count == 0:
            continue
        start, at = at, at + count
        if segments and segments[-1][:2] == run.origin:
            start = segments.pop().start
        segments.append(Segment(*run.origin, start, at))
    return segments


def _weight(value: Any) -> int:
    """About how much there is to render: characters, and something for each part."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return PART_WEIGHT + sum(map(_weight, value.values()))
    return sum(map(_weight, value)) if isinstance(value, (list, tuple)) else 1
