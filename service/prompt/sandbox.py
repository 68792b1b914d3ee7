"""Where chat templates run: transformers' dialect of Jinja, sandboxed, timed, keeping every text's origin.

A template is the operator's, its values are the caller's. Three things are added to Jinja's sandbox:
- every loop pass and macro call looks at the clock, since a thread that renders for ever cannot be killed;
- whatever Jinja does to a string keeps its origin, or counts as the caller's (see `traced`);
- a loop over the messages leaves a mark in the output where each one begins, and so does a branch that
  depends on `add_generation_prompt`, so that the template's own text is told apart by message.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler

from service.prompt.dialect import filters_of, printed, raise_exception, settled, strftime_now
from service.prompt.traced import LOOSE, Origin, join, mark

CLOCK_EVERY = 16  # steps; reading a thread's processor time is a system call
LONGEST_REPEAT = 1_000_000
LARGEST_POWER = 64


class RenderTooLong(TemplateError):
    """The template has used up its time."""


class Turn(dict[str, Any]):
    """One message as a template sees it; it knows its place."""

    __slots__ = ("_index",)

    def __init__(self, index: int, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._index = index

    @property
    def _origin(self) -> Origin:
        return Origin(self._index, "template")


class Watch:
    """The processor time a rendering may use: the thread's own, so that a busy machine refuses nobody."""

    def __init__(self, limit_s: float) -> None:
        self._until = time.thread_time() + limit_s
        self._steps = 0

    def tick(self) -> None:
        self._steps += 1
        if self._steps % CLOCK_EVERY == 0 and time.thread_time() > self._until:
            raise RenderTooLong


class RenderContext(Context):
    """One rendering's variables, its clock, and the message each running loop is at.

    The compiled template calls `tick`, `enter`, `leave`, `generation` and outputs what they return.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watch = Watch(float("inf"))
        self._at: list[tuple[int, Origin]] = []  # loops over messages, the innermost last

    def derived(self, locals: dict[str, Any] | None = None) -> RenderContext:  # the name is Jinja's
        context = super().derived(locals)
        assert isinstance(context, RenderContext)
        context.watch = self.watch
        return context

    def tick(self) -> str:
        """A macro is called."""
        self.watch.tick()
        return ""

    def enter(self, loop: int, *targets: object) -> str:
        """A loop pass begins; if it is about a message, so does that message."""
        self.watch.tick()
        for target in targets:
            if isinstance(target, Turn):
                if self._at and self._at[-1][0] == loop:
                    self._at.pop()
                self._at.append((loop, target._origin))
                return mark(target._origin)
        return ""

    def leave(self, loop: int) -> str:
        """A loop has ended: if it was about messages, what follows belongs to the one around it again."""
        if not self._at or self._at[-1][0] != loop:
            return ""
        self._at.pop()
        return mark(self._here())

    def generation(self, begins: bool) -> str:
        """A branch that depends on `add_generation_prompt` begins or ends."""
        if not self.resolve("add_generation_prompt"):
            return ""
        return mark(Origin(None, "generation") if begins else self._here())

    def _here(self) -> Origin:
        return self._at[-1][1] if self._at else LOOSE


class TracingGenerator(CodeGenerator):
    """Jinja's compiler, adding the calls that `RenderContext` answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops = 0

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._loops += 1
        loop = nodes.Const(self._loops)
        node.body.insert(0, _hook("enter", loop, *_names(node.target)))
        super().visit_For(node, frame)
        self.visit(_hook("leave", loop), frame)

    def visit_If(self, node: nodes.If, frame: Frame) -> None:
        for branch in (node, *node.elif_):
            if any(name.name == "add_generation_prompt" for name in _names(branch.test)):
                branch.body.insert(0, _hook("generation", nodes.Const(True)))
                branch.body.append(_hook("generation", nodes.Const(False)))
        super().visit_If(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        node.body.insert(0, _hook("tick"))
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        node.body.insert(0, _hook("tick"))
        super().visit_CallBlock(node, frame)

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        """A hook, whose value is output; Jinja itself has no other such statement here."""
        call = node.node
        assert isinstance(call, nodes.Call) and isinstance(call.node, nodes.Getattr)
        self.start_write(frame)
        self.write(f"context.{call.node.attr}(")
        for argument in call.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")
        self.end_write(frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """The operator `~`."""
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("environment.finalize(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class GenerationTag(Extension):
    """`{% generation %}`, with which templates say what a model wrote; it changes nothing in the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja, arranged as transformers arranges it for chat templates, plus the three additions above."""

    code_generator_class = TracingGenerator
    context_class = RenderContext
    concat = staticmethod(join)
    intercepted_binops = frozenset(("%", "*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            finalize=printed,
        )
        self.filters = filters_of(self.filters)
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja has it, without the exception inside for `message.role` and the like."""
        if isinstance(obj, dict) and attribute in obj and not hasattr(obj, attribute):
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and _repeats(left, right) > LONGEST_REPEAT:
            raise SecurityError("the template repeats a text too often")
        if operator == "**" and not (isinstance(right, (int, float)) and right <= LARGEST_POWER):
            raise SecurityError("the template raises to too high a power")
        result = super().call_binop(context, operator, left, right)
        return settled(result, (left, right), exact=False) if isinstance(result, str) else result

    def call(__self, __context: Context, __called: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method; the names keep clear of the template's keyword arguments."""
        owner = getattr(getattr(__called, "__wrapped__", __called), "__self__", None)
        if isinstance(owner, str) and getattr(__called, "__name__", "") == "join":
            return __self.filters["join"](__self, *args, owner)
        result = super().call(__context, __called, *args, **kwargs)
        if not isinstance(result, str) or isinstance(__called, (Macro, LoopContext, BlockReference)):
            return result  # these joined their result in here, origins and all
        if isinstance(owner, (dict, list, tuple, Cycler)):
            return result  # one of the texts that were put in
        return settled(result, (owner, *args, *kwargs.values()), exact=True)


def _hook(method: str, *arguments: nodes.Expr) -> nodes.ExprStmt:
    called = nodes.Getattr(nodes.ContextReference(), method, "load")
    return nodes.ExprStmt(nodes.Call(called, list(arguments), [], None, None))


def _names(node: nodes.Node) -> list[nodes.Name]:
    found = [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)
    return [nodes.Name(name.name, "load") for name in found]


def _repeats(left: object, right: object) -> int:
    """How long the product of a text or list and a number is; 0 for two numbers."""
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            return len(many) * times
    return 0
