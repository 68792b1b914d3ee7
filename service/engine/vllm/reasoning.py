"""Thinking told from answering, by vLLM's reasoning parsers: the one place that knows these."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.reasoning import ReasoningParserManager

from service.engine.protocol import EngineStartError, Thinking
from service.errors import shown
from service.settings import nearest

log = logging.getLogger(__name__)


def check_reasoning_parser(name: str) -> None:
    """Raises EngineStartError when vLLM has no reasoning parser of that name."""
    known = ReasoningParserManager.list_registered()
    if name not in known:
        raise EngineStartError(
            f"TWOPHASE_REASONING_PARSER: vLLM has no reasoning parser {shown(name)}{nearest(name, known)} "
            f"It has {', '.join(known)}."
        )


class ReasoningParser:
    """vLLM's reasoning parser of one name, for one model.

    Raises:
        EngineStartError: vLLM has no parser of that name, or it cannot be used with this tokenizer.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        check_reasoning_parser(name)
        self._tokenizer = tokenizer
        try:
            self._parser = ReasoningParserManager.get_reasoning_parser(name)
            trial = self._parser(tokenizer)
        except Exception as exc:
            reason = shown(" ".join(str(exc).split()), 300)
            raise EngineStartError(
                f"TWOPHASE_REASONING_PARSER: {name} does not fit this model's tokenizer: {reason}"
            ) from exc
        request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}])
        self.hides_special_tokens = bool(trial.adjust_request(request).skip_special_tokens)
        self._marks = _marks(trial, tokenizer)
        self._added = frozenset(tokenizer.get_added_vocab().values())

    def thinkings(
        self, token_ids: Sequence[int], n: int, template_kwargs: Mapping[str, Any]
    ) -> list[Thinking]:
        """One for each of n answers to a prompt; none where the prompt has already ended the thinking."""
        parsers = [
            self._parser(self._tokenizer, chat_template_kwargs=dict(template_kwargs)) for _ in range(n)
        ]
        if parsers[0].is_reasoning_end(token_ids):
            return []
        for parser in parsers:
            parser.adjust_initial_state_from_prompt(token_ids)
        return [_Thinking(parser, self._marks, self._added) for parser in parsers]


class _Thinking(Thinking):
    """Feeds a parser one token after another.

    Between two marks a text is thought, or answer, from one end to the other; a parser has nothing to find
    there, and some look through all that was before at every token. So once a text has come out of it
    whole, texts in which no mark can begin go the same way without it. A mark that is a token may have no
    text: `added` are the tokens that may be one.
    """

    def __init__(self, parser: Any, marks: re.Pattern[str] | None, added: frozenset[int]) -> None:
        self.ended = False
        self._parser = parser
        self._marks = marks
        self._added = added
        self._text = ""
        self._token_ids: list[int] = []
        self._way: bool | None = None  # True: all thought, False: all answer, None: ask

    @property
    def thinks(self) -> bool:
        return self._way is not False and not self.ended

    def read(self, text: str, token_id: int) -> tuple[str, str]:
        plain = self._marks is not None and token_id not in self._added and not self._marks.search(text)
        if self._way is not None and plain:
            return (text, "") if self._way else ("", text)
        try:
            thought, answer = self._asked(text, token_id)
        except Exception:  # a parser that stumbles over what a model writes leaves it as it is
            log.exception("the reasoning parser has failed; the text is passed on as it is")
            self.ended = True
            return "", text
        if text or not plain:  # what may hold a mark may leave something held back
            self._way = None if not plain else True if thought == text else False if answer == text else None
        return thought, answer

    def finish(self) -> tuple[str, str]:
        if self.ended or not self._parser.engine_based_streaming:
            return "", ""
        try:
            return _parts(self._parser.finish_streaming())
        except Exception:
            log.exception("the reasoning parser has failed at the end of an answer")
            return "", ""

    def _asked(self, text: str, token_id: int) -> tuple[str, str]:
        before, before_ids = self._text, self._token_ids
        self._text, self._token_ids = before + text, [*before_ids, token_id]
        thought, answer = _parts(
            self._parser.extract_reasoning_streaming(
                before, self._text, text, before_ids, self._token_ids, [token_id]
            )
        )
        if self._parser.engine_based_streaming:
            self.ended = self._parser.has_engine_confirmed_reasoning_end()
            if self.ended:
                answer += _parts(self._parser.finish_streaming())[1]
        else:
            self.ended = self._parser.is_reasoning_end_streaming(self._token_ids, [token_id])
        return thought, answer


def _parts(said: Any) -> tuple[str, str]:
    return ("", "") if said is None else (said.reasoning or "", said.content or "")


def _marks(parser: Any, tokenizer: Any) -> re.Pattern[str] | None:
    """What finds texts in which a mark may begin: with its first character, or as a token of its own.

    None where marks are words, which may begin anywhere.
    """
    marks = [parser.reasoning_start_str, parser.reasoning_end_str]
    if any(not mark or mark[0].isalnum() or mark[0].isspace() for mark in marks):
        return None
    added = [token for token in tokenizer.get_added_vocab() if token and not token.isspace()]
    return re.compile("|".join(re.escape(first) for first in {name[0] for name in [*marks, *added]}))
