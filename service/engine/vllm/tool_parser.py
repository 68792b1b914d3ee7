"""Calls that a model makes of its own accord, read by vLLM's parsers: the one place that knows these."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.tool_parsers import ToolParserManager

from service.engine.protocol import (
    CallDelta,
    CallPlan,
    CallReader,
    Constraint,
    Delta,
    EngineStartError,
    new_call_id,
)
from service.settings import nearest

log = logging.getLogger(__name__)

# What only templates of one way of calling have in them; the first that fits counts.
MARKS = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
)

# Whose calls begin with a bracket or with a token of their own. Others begin with words, anywhere.
BRACKETED = frozenset(
    {"hermes", "qwen3_json", "qwen3_coder", "qwen3_xml", "mistral", "llama3_json", "llama4_json"}
)
BRACKETS = re.compile(r"[<\[{|]")

TOGETHER_TOKENS = 4  # of a call: vLLM's parsers take 15 to 25 us each time, however much they are given


class ToolParser:
    """vLLM's tool parser of one name, for one model.

    Raises:
        EngineStartError: vLLM has no parser of that name, or it cannot be used with this tokenizer.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        known = ToolParserManager.list_registered()
        if name not in known:
            raise EngineStartError(
                f"TWOPHASE_TOOL_PARSER: vLLM has no tool parser {name}{nearest(name, known)} It has "
                f"{', '.join(known)}."
            )
        self.name = name
        self._tokenizer = tokenizer
        try:
            self._parser = ParserManager.get_parser(name, None, enable_auto_tools=True, tokenizer=tokenizer)
        except Exception as exc:
            raise EngineStartError(
                f"TWOPHASE_TOOL_PARSER: {name} cannot read this model's calls: {exc}"
            ) from exc
        self._added = frozenset(tokenizer.get_added_vocab().values()) if name in BRACKETED else None

    def plan(self, tools: Sequence[Mapping[str, Any]], n: int, *, parallel: bool, stream: bool) -> CallPlan:
        """How to read the calls in the answers of one request, and what the model is held to."""
        request = ChatCompletionRequest(
            messages=[{"role": "user", "content": ""}],
            tools=list(tools),
            tool_choice="auto",
            parallel_tool_calls=parallel,
            stream=stream,
        )
        parsers = [self._parser(self._tokenizer, request.tools) for _ in range(n)]
        request = parsers[0].adjust_request(request)
        readers: list[CallReader] = [
            _Streaming(parser, request, self._added, parallel=parallel)
            if stream
            else _Whole(parser, request, parallel=parallel)
            for parser in parsers
        ]
        wanted = request.structured_outputs
        tag = None if wanted is None else wanted.structural_tag
        return CallPlan(
            readers,
            constraint=Constraint("structural_tag", tag, "tools") if tag else None,
            skip_special_tokens=request.skip_special_tokens,
        )


def parser_for(template: str) -> str | None:
    """The parser for the calls that a chat template asks for, where there is no doubt."""
    return next((name for mark, name in MARKS if mark in template), None)


class _Reader(CallReader):
    def __init__(self, parser: Any, request: Any, *, parallel: bool) -> None:
        self._parser = parser
        self._request = request
        self._parallel = parallel
        self._called = False

    def read(self, delta: Delta) -> None:
        try:
            self._read(delta)
        except Exception:  # a parser that stumbles over what a model writes leaves it as it is
            log.exception("the tool parser has failed; its text is passed on as it is")
        if self._called and delta.finish == "stop":
            delta.finish = "tool_calls"

    def _read(self, delta: Delta) -> None:
        raise NotImplementedError

    def _kept(self, calls: Sequence[CallDelta]) -> list[CallDelta]:
        kept = [call for call in calls if self._parallel or call.index == 0]
        self._called = self._called or bool(kept)
        return kept


class _Streaming(_Reader):
    """Reads a call some tokens at a time, since nobody reads arguments along, and text as it comes.

    A parser finds nothing in text where no call can begin. Once such text has come out of it whole, more of
    the kind goes past it at once, and is shown to it when something comes that it has to judge.

    `added`: the tokens which may be a mark without a bracket in their text; None: marks may be words.
    """

    def __init__(self, parser: Any, request: Any, added: frozenset[int] | None, *, parallel: bool) -> None:
        super().__init__(parser, request, parallel=parallel)
        self._added = added
        self._past = False  # whether text goes past the parser
        self._texts: list[str] = []  # which the parser has not seen yet
        self._token_ids: list[int] = []

    def _read(self, delta: Delta) -> None:
        ended = delta.finish is not None
        plain = (
            self._added is not None
            and not ended
            and not BRACKETS.search(delta.text)
            and self._added.isdisjoint(delta.token_ids)
        )
        if self._past and not plain:
            self._parse(*self._unread(), ended=False)
            self._past = False
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        if self._past:
            return
        text, delta.text = delta.text, ""
        if self._called and not ended and len(self._token_ids) < TOGETHER_TOKENS:
            return
        unread, ids = self._unread()
        try:
            said = self._parse(unread, ids, ended=ended)
        except Exception:
            delta.text = unread
            raise
        if said is not None:
            delta.text = said.content or ""
            delta.calls = self._kept([_call(call) for call in said.tool_calls or ()])
        # A text that is empty says nothing of what the parser holds back.
        self._past = plain and bool(text) and not self._called and delta.text == text

    def _unread(self) -> tuple[str, list[int]]:
        text, ids = "".join(self._texts), self._token_ids
        self._texts, self._token_ids = [], []
        return text, ids

    def _parse(self, text: str, ids: list[int], *, ended: bool) -> Any:
        return self._parser.parse_delta(text, ids, self._request, (), finished=ended)


class _Whole(_Reader):
    """Reads the text when it is complete."""

    def __init__(self, parser: Any, request: Any, *, parallel: bool) -> None:
        super().__init__(parser, request, parallel=parallel)
        self._text = ""
        self._token_ids: list[int] = []

    def _read(self, delta: Delta) -> None:
        self._text += delta.text
        self._token_ids += delta.token_ids
        delta.text = self._text if delta.finish is not None else ""
        if delta.finish is None:
            return
        _, content, calls = self._parser.parse(
            self._text, self._request, enable_auto_tools=True, model_output_token_ids=self._token_ids
        )
        delta.text = content or ""
        delta.calls = self._kept(
            [
                CallDelta(index, _written(call.arguments), call.id or new_call_id(), _written(call.name))
                for index, call in enumerate(calls or ())
            ]
        )


def _call(call: Any) -> CallDelta:
    function = call.function
    name = function.name if function is not None else None
    arguments = _written((function.arguments if function is not None else None) or "")
    call_id = call.id or (new_call_id() if name else None)
    return CallDelta(call.index, arguments, call_id, name and _written(name))


def _written(text: str) -> str:
    """Text that can be sent: parsers decode JSON, in which a model may have escaped half a character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
