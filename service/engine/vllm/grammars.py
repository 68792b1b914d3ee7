"""Constraints in vLLM's words, each tried before the engine sees it and remembered by what it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features
from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark

from service.engine.grammar import Unfit, Workshop
from service.engine.protocol import Constraint
from service.errors import InvalidValue, shown

BACKEND = "xgrammar"  # what the trial uses, and what forbids free white space in JSON
REMEMBERED = 4096
LARGE = 8192  # characters of a schema that are walked through in a thread
LONGEST = 256 * 1024
TOO_MUCH = "compiling it takes too much time or memory; make it simpler, or its repetitions fewer"
UNSUPPORTED = (
    "it uses a keyword, or a combination of keywords, that cannot be enforced: multipleOf, uniqueItems, "
    "contains, an unknown format, pattern or format together with a length, patternProperties or "
    "propertyNames together with properties, allOf with several schemas, not, if, dependentRequired, "
    "dependentSchemas, a $ref to elsewhere, or a pattern that looks around"
)
DROPPED = (
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
)  # by xgrammar, without a word
NAMING = ("properties", "patternProperties", "$defs", "definitions")  # their keys are names of the caller's
DATA = ("enum", "const", "default", "examples")
Key = tuple[str, str]
AROUND = re.compile(r"\(\?(=|!|<=|<!)")


def structured_outputs(constraint: Constraint) -> StructuredOutputsParams:
    """The constraint as vLLM's parameters, past vLLM's own check: that would compile on the event loop."""
    kind, spec = _as_grammar(constraint)
    params = StructuredOutputsParams(**{"grammar" if kind == "lark" else kind: spec})
    params._backend = BACKEND
    return params


@dataclass(slots=True)
class _Trial:
    """One under way, and how many wait for what it finds."""

    task: asyncio.Task[str | None]
    waiting: int = 0


class Grammars:
    """Knows which constraints can be used."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._faults: OrderedDict[Key, str | None] = OrderedDict()
        self._trials: dict[Key, _Trial] = {}

    async def check(self, constraint: Constraint, tenant: str) -> None:
        """Returns when the engine can be given the constraint; at once when it is known.

        Raises:
            InvalidValue: it cannot be used. Overloaded, EngineUnavailable: that cannot be found out now.
        """
        key = (constraint.kind, constraint.spec)
        if key in self._faults:
            self._faults.move_to_end(key)
        else:
            self._faults[key] = await self._tried(key, constraint, tenant)
            if len(self._faults) > REMEMBERED:
                self._faults.popitem(last=False)
        if (fault := self._faults[key]) is not None:
            raise InvalidValue(f"{constraint.field} cannot be used: {fault}.", param=constraint.field)

    async def _tried(self, key: Key, constraint: Constraint, tenant: str) -> str | None:
        """Many who bring the same new constraint at once wait for one trial; the last to leave ends it."""
        trial = self._trials.get(key)
        if trial is None:
            trial = self._trials[key] = _Trial(asyncio.create_task(self._fault(constraint, tenant)))
        trial.waiting += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.waiting -= 1
            if not trial.waiting:
                del self._trials[key]
                trial.task.cancel()

    async def _fault(self, constraint: Constraint, tenant: str) -> str | None:
        if len(constraint.spec) > LONGEST:
            return f"it is longer than {LONGEST} characters"
        if constraint.kind == "json" and await self._asks_too_much(constraint.spec):
            return UNSUPPORTED
        try:
            await self._workshop.fits(*_as_grammar(constraint), tenant)
        except Unfit as exc:
            said = shown(str(exc), 200).rstrip(".")
            return said or TOO_MUCH
        return None

    async def _asks_too_much(self, schema: str) -> bool:
        if len(schema) <= LARGE:
            return is_unsupported(schema)
        return await asyncio.to_thread(is_unsupported, schema)


def is_unsupported(schema: str) -> bool:
    """Whether a part of a JSON schema could not be enforced, or would silently have no effect."""
    parsed = json.loads(schema)
    return bool(has_xgrammar_unsupported_json_features(parsed)) or _is_dropped(parsed)


def _is_dropped(schema: Any) -> bool:
    """Whether a part of the schema would silently have no effect."""
    if isinstance(schema, list):
        return any(map(_is_dropped, schema))
    if not isinstance(schema, dict):
        return False
    if any(name in schema for name in DROPPED) or not str(schema.get("$ref", "#")).startswith("#"):
        return True
    if AROUND.search(str(schema.get("pattern", ""))):
        return True
    for name, value in schema.items():
        below = list(value.values()) if name in NAMING and isinstance(value, dict) else value
        if name not in DATA and _is_dropped(below):
            return True
    return False


def _as_grammar(constraint: Constraint) -> tuple[str, str]:
    kind, spec = constraint.kind, constraint.spec
    if kind == "choice":
        return "grammar", choice_as_grammar(json.loads(spec))
    if kind == "grammar" and grammar_is_likely_lark(spec):
        return "lark", spec
    return kind, spec
