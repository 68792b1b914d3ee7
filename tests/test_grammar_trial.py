"""Grammars are tried in a process of their own: what explodes there is felt nowhere else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from service.engine.grammar import Limits, Unfit, Workshop
from service.engine.protocol import Constraint
from service.engine.vllm.grammars import Grammars
from service.errors import EngineUnavailable, Overloaded

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = ".{1,%d}"  # a second and a half of compilation for a thousand


async def tokens(folder: Path) -> str:
    """The embedded model's tokens."""
    from transformers import AutoTokenizer
    from xgrammar import TokenizerInfo

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return str(TokenizerInfo.from_huggingface(tokenizer, vocab_size=49_152).serialize_json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workshop(embedded_model: Path) -> AsyncIterator[Workshop]:
    """One that gives each trial a fifth of a second."""
    made = Workshop(lambda: tokens(embedded_model), Limits(cpu_s=0.2))
    await made.open()
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json", '{"type":"object","properties":{"a":{"type":"integer"}}}'),
        ("regex", "(yes|no)+"),
        ("grammar", 'root ::= "a" | "b" root'),
        ("lark", 'start: "a" "b"'),
        ("structural_tag", '{"type":"structural_tag","format":{"type":"const_string","value":"x"}}'),
    ],
)
async def test_what_compiles_fits(workshop: Workshop, kind: str, spec: str) -> None:
    await workshop.fits(kind, spec, "acme")


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("json", '{"type":"nonsense"}', 'Unsupported type "nonsense"'),
        ("json", '{"$ref":"#/nowhere"}', "nowhere"),
        ("regex", "[a-", "Unclosed"),
        ("regex", "(?=a)b", "not supported"),
        ("regex", "(" * 20_000 + "a" + ")" * 20_000, "exceeded"),
        ("grammar", "root ::= nothing", "not defined"),
        ("structural_tag", "{}", "."),
        ("json", '{"$ref":"#"}', "no text can match it"),
        ("regex", "[^\\s\\S]", "no text can match it"),
    ],
)
async def test_what_does_not_compile_is_told_without_a_path(
    workshop: Workshop, kind: str, spec: str, said: str
) -> None:
    with pytest.raises(Unfit, match=said) as refusal:
        await workshop.fits(kind, spec, "acme")
    assert "/" not in str(refusal.value).replace("#/nowhere", "")


async def test_what_explodes_ends_at_its_limit_and_the_loop_goes_on(workshop: Workshop) -> None:
    trial = asyncio.ensure_future(workshop.fits("regex", LONG % 1000, "acme"))
    late = 0.0
    while not trial.done():
        began = time.monotonic()
        await asyncio.sleep(0.005)
        late = max(late, time.monotonic() - began)
    with pytest.raises(Unfit, match="^$"):
        await trial
    assert late < 1, "the event loop stood still"


@pytest.mark.parametrize("pattern", ["(a{1,100}){1,100}", "(((a{1,100}){1,100}){1,100}){1,100}", "(x+x+)+y"])
async def test_what_compiles_at_once_and_explodes_token_by_token_does_not_fit(
    workshop: Workshop, pattern: str
) -> None:
    with pytest.raises(Unfit, match="^$"):
        await workshop.fits("regex", pattern, "acme")


@pytest.mark.parametrize("pattern", ["(a+)+", "[a-z]+", "(one|two|three){1,50}", '[^"]*'])
async def test_repetitions_that_cost_the_same_at_every_token_fit(workshop: Workshop, pattern: str) -> None:
    await workshop.fits("regex", pattern, "acme")


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"type": "object", "properties": {"a": {"if": {}, "then": {"minLength": 2}}}},
        {"$ref": "file:///etc/passwd"},
        {"type": "array", "items": {"type": "string", "pattern": "^(?=x)"}},
        {"anyOf": [{"dependentRequired": {"a": ["b"]}}]},
    ],
)
async def test_a_word_of_a_schema_that_would_have_no_effect_is_refused(
    schema: dict[str, Any],
) -> None:
    from service.engine.vllm.grammars import is_unsupported

    assert is_unsupported(json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"not": {"type": "string"}, "if": {"type": "boolean"}}},
        {"$defs": {"then": {"type": "integer"}}, "$ref": "#/$defs/then"},
        {"enum": [{"not": 1}], "default": {"if": 2}},
        {"type": "string", "pattern": "(?:a|b)+"},
    ],
)
async def test_names_and_data_are_no_words_of_the_schema(schema: dict[str, Any]) -> None:
    from service.engine.vllm.grammars import is_unsupported

    assert not is_unsupported(json.dumps(schema))


async def test_a_trial_without_memory_ends(embedded_model: Path) -> None:
    small = Workshop(lambda: tokens(embedded_model), Limits(memory_bytes=2**20))
    try:
        with pytest.raises(Unfit, match="^$"):
            await small.fits("regex", "|".join(f"w{at * 7919 % 100_003}x" for at in range(40_000)), "acme")
    finally:
        await small.aclose()


async def test_one_that_explodes_keeps_no_other_waiting_for_long(workshop: Workshop) -> None:
    explosion = asyncio.ensure_future(workshop.fits("regex", LONG % 1001, "acme"))
    await asyncio.sleep(0.01)
    await workshop.fits("json", '{"type":"boolean"}', "other")
    with pytest.raises(Unfit):
        await explosion


async def opened(workshop: Workshop) -> psutil.Process:
    """Its program."""
    before = psutil.Process().children()
    await workshop.open()
    [program] = set(psutil.Process().children()) - set(before)
    return program


async def children(program: psutil.Process, count: int) -> None:
    """Returns when so many trials are under way."""
    async with asyncio.timeout(5):
        while len(program.children()) != count:  # noqa: ASYNC110  # nobody tells when a process forks
            await asyncio.sleep(0.01)


async def test_who_leaves_takes_its_trial_along(embedded_model: Path) -> None:
    patient = Workshop(lambda: tokens(embedded_model), Limits(cpu_s=20))
    program = await opened(patient)
    try:
        trials = [
            asyncio.ensure_future(patient.fits("regex", LONG % (4000 + at), str(at))) for at in range(2)
        ]
        await children(program, 2)
        for trial in trials:
            assert trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)
        await children(program, 0)
        await patient.fits("regex", "a", "acme")
    finally:
        await patient.aclose()


async def test_its_death_is_told_and_the_next_one_finds_it_alive(embedded_model: Path) -> None:
    mortal = Workshop(lambda: tokens(embedded_model), Limits(cpu_s=20))
    program = await opened(mortal)
    try:
        trial = asyncio.ensure_future(mortal.fits("regex", LONG % 4002, "acme"))
        await children(program, 1)
        program.kill()
        with pytest.raises(EngineUnavailable):
            await trial
        await mortal.fits("regex", "a", "acme")
    finally:
        await mortal.aclose()


async def test_who_waits_too_long_for_a_place_is_told_to_come_again(embedded_model: Path) -> None:
    busy = Workshop(lambda: tokens(embedded_model), Limits(cpu_s=2, wait_s=0.5))
    try:
        await busy.open()
        trials = [asyncio.ensure_future(busy.fits("regex", LONG % (1000 + at), str(at))) for at in range(6)]
        found = await asyncio.gather(*trials, return_exceptions=True)
        assert any(isinstance(one, Overloaded) for one in found)
    finally:
        await busy.aclose()


async def test_one_tenant_with_many_new_patterns_shuts_nobody_out(embedded_model: Path) -> None:
    busy = Workshop(lambda: tokens(embedded_model), Limits(cpu_s=20, wait_s=15))
    try:
        await busy.open()
        many = [asyncio.ensure_future(busy.fits("regex", LONG % (4000 + at), "greedy")) for at in range(6)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(10):
            await busy.fits("regex", "a", "modest")
        assert not any(one.done() for one in many)
        for one in many:
            one.cancel()
        await asyncio.gather(*many, return_exceptions=True)
    finally:
        await busy.aclose()


class Counted(Workshop):
    """Counts what it is asked to try."""

    tried = 0

    async def fits(self, kind: str, spec: str, tenant: str) -> None:
        self.tried += 1
        await super().fits(kind, spec, tenant)


async def test_many_who_bring_the_same_new_pattern_at_once_share_one_trial(embedded_model: Path) -> None:
    patient = Counted(lambda: tokens(embedded_model), Limits(cpu_s=20))
    program = await opened(patient)
    grammars = Grammars(patient)
    try:
        new = Constraint("regex", LONG % 1003, "structured_outputs.regex")
        waiting = [asyncio.ensure_future(grammars.check(new, "acme")) for _ in range(40)]
        await children(program, 1)
        assert waiting.pop(0).cancel(), "who came first and leaves takes nothing along"
        await asyncio.gather(*waiting)
        assert patient.tried == 1
        worse = Constraint("regex", LONG % 4003, "structured_outputs.regex")
        waiting = [asyncio.ensure_future(grammars.check(worse, "acme")) for _ in range(2)]
        await children(program, 1)
        for one in waiting:
            one.cancel()
        await children(program, 0)
        await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        await patient.aclose()
