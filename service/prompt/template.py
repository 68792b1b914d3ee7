"""The model's chat template: compiled once, rendered under a time limit, its failures told in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError

from service.errors import InvalidTemplate, InvalidValue, StartError, shown
from service.prompt.dialect import TemplateRefusal
from service.prompt.layout import end_of_message
from service.prompt.messages import Message, Reader
from service.prompt.prompt import RenderOptions
from service.prompt.sandbox import RenderContext, RenderTooLong, TemplateEnvironment, Turn, Watch
from service.prompt.traced import Origin, join

SENTENCE = 300  # characters of a template's own refusal that are passed on
OUR_OWN = frozenset(
    (
        *("chat_template", "messages", "conversation", "tools", "documents", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_dict", "return_tensors", "return_assistant_tokens_mask"),
    )
)


class TemplateUnavailable(StartError):
    """There is no usable chat template or tokenizer; the message says what to change."""


class ChatTemplate:
    """Turns messages into text, each stretch of it with its origin.

    `sources` are the model's templates by name ("default", and "tool_use" if tools have one of their own),
    `specials` the tokenizer's special tokens by role, `defaults` the operator's template arguments.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        specials: Mapping[str, str],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        environment = TemplateEnvironment()
        self.reader = Reader()
        self._templates = {name: _compiled(environment, source) for name, source in sources.items()}
        self._given = {"documents": None, **specials, **(defaults or {})}
        self._reserved = OUR_OWN | environment.globals.keys() | specials.keys()

    def read_by(self, reader: Reader) -> ChatTemplate:
        """The same template, its messages read in another way."""
        other = copy.copy(self)
        other.reader = reader
        return other

    def render(self, messages: Sequence[Message], options: RenderOptions, limit_s: float) -> str:
        """The conversation as text.

        Raises:
            InvalidValue: for a message or option that cannot be used.
            InvalidTemplate: if the template refuses or fails on them, or an argument is not for callers.
            RenderTooLong: when `limit_s` seconds of processor time are used up.
        """
        conversation = self.reader.turns(messages)
        _check_continuation(conversation, options)
        text = self._filled(self._variables(conversation, options), limit_s)
        return _left_open(text, len(conversation) - 1) if options.continue_final_message else text

    def _variables(self, conversation: list[Turn], options: RenderOptions) -> dict[str, Any]:
        tools = [
            self.reader.traced(tool, Origin(None, "tools"), f"tools[{at}]")
            for at, tool in enumerate(options.tools or ())
        ]
        own = {
            "messages": conversation,
            "tools": tools or None,
            "add_generation_prompt": options.add_generation_prompt,
        }
        return self._given | self._arguments(options.template_kwargs) | own

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {}
        for name, value in given.items():
            param = f"chat_template_kwargs.{shown(name)}"
            if name in self._reserved:
                raise InvalidTemplate(f"{param} is not the request's to set.", param=param)
            arguments[name] = self.reader.traced(value, Origin(None, "argument"), param)
        return arguments

    def _filled(self, variables: dict[str, Any], limit_s: float) -> str:
        name = "tool_use" if variables["tools"] and "tool_use" in self._templates else "default"
        context = self._templates[name].new_context(variables)
        assert isinstance(context, RenderContext)
        context.watch = Watch(limit_s)
        try:
            return join(self._templates[name].root_render_func(context))
        except RenderTooLong:
            raise
        except TemplateRefusal as refusal:
            reason = shown(str(refusal).strip(), SENTENCE) or "it gives no reason."
            sentence = f"The chat template refuses these messages: {reason}"
            raise InvalidTemplate(sentence, param="messages") from None
        except Exception as exc:  # whatever a template does to values it did not expect
            sentence = "The chat template cannot render these messages."
            raise InvalidTemplate(sentence, param="messages") from exc


def _compiled(environment: TemplateEnvironment, source: str) -> Template:
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as exc:
        reason = f"the chat template is not valid Jinja, line {exc.lineno}: {exc.message}"
        raise TemplateUnavailable(reason) from None


def _check_continuation(conversation: Sequence[Turn], options: RenderOptions) -> None:
    if not options.continue_final_message:
        return
    if options.add_generation_prompt:
        reason = "continue_final_message and add_generation_prompt cannot both be true."
    elif conversation[-1]["role"] != "assistant":
        reason = "continue_final_message needs a last message whose role is assistant."
    else:
        return
    raise InvalidValue(reason, param="continue_final_message")


def _left_open(text: str, last: int) -> str:
    """The rendered text up to the end of the last message's content."""
    end = end_of_message(text, last)
    if end is None:
        reason = "continue_final_message cannot be: the chat template leaves the last message's content out."
        raise InvalidValue(reason, param="continue_final_message")
    return text[:end]
