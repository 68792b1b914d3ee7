"""What every engine does, held against the scripted one and against vLLM on the one-layer model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.random_model import make
from service.engine.protocol import Delta, Engine, EngineStartError, Generation, Sink, Work
from service.engine.sampling import Sampling
from service.errors import CallerError, EngineUnavailable, ServiceError
from tests.scripted import ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(1000, 1020))
KV_BYTES = 64 * 2**20
OTHER_END = 2000  # an end token that only the model's generation_config knows, and that has a text


@pytest.fixture(scope="session")
def one_layer_model(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that is quick and says nothing sensible."""
    model = make(tmp_path_factory.mktemp("models") / "one-layer", cache, context_window=1024)
    advised = {
        "eos_token_id": [OTHER_END],  # and not 2, which the tokenizer knows
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "max_new_tokens": 3,
    }
    (model / "generation_config.json").write_text(json.dumps(advised))
    return model


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["scripted", pytest.param("vllm", marks=pytest.mark.engine)],
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Both engines, started once for all tests here."""
    made: Engine = ScriptedEngine() if request.param == "scripted" else _vllm(request)
    await made.start()
    yield made
    await made.aclose()


def _vllm(request: pytest.FixtureRequest) -> Engine:
    from service.engine.vllm import VllmEngine

    model = request.getfixturevalue("one_layer_model")
    return VllmEngine(str(model), {"kv_cache_memory_bytes": KV_BYTES})


class Collected(Sink):
    """Everything one generation handed over."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.error: ServiceError | None = None
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.choices_left = 1

    def put(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.begun.set()
        self.choices_left -= delta.finish is not None
        if self.choices_left == 0:
            self.ended.set()

    def fail(self, error: ServiceError) -> None:
        self.error = error
        self.ended.set()

    def token_ids(self, index: int = 0) -> list[int]:
        return [token for delta in self.deltas if delta.index == index for token in delta.token_ids]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)


def work(
    name: str, max_output_tokens: int = 8, n: int = 1, *, stream: bool = True, **sampling: object
) -> Work:
    """A request that ends only at its length."""
    chosen = Sampling(**{"ignore_eos": True, "temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Work(name, list(PROMPT), chosen, max_output_tokens, n, stream=stream)


async def finished(generation: Generation) -> Collected:
    """All of a generation."""
    collected = Collected()
    generation.listen(collected)
    await asyncio.wait_for(collected.ended.wait(), 60)
    return collected


async def test_facts_are_known_after_the_start(engine: Engine) -> None:
    assert engine.facts.context_window == 1024
    assert engine.facts.vocab_size == 49_152
    engine.check()


async def test_what_the_makers_of_a_model_advise_is_known_and_is_no_token_limit(engine: Engine) -> None:
    if isinstance(engine, ScriptedEngine):
        pytest.skip("nobody has made the scripted engine's model")
    assert engine.facts.sampling_defaults == {"temperature": 0.2, "top_p": 0.9}


async def test_a_generation_gives_as_many_tokens_as_asked_for_and_says_why_it_ended(engine: Engine) -> None:
    answer = await finished(await engine.generate(work("length")))
    assert len(answer.token_ids()) == 8
    assert [delta.finish for delta in answer.deltas if delta.finish] == ["length"]
    assert answer.deltas[-1].finish == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_end_token_of_the_model_ends_an_answer_and_is_not_shown(
    engine: Engine, stream: bool
) -> None:
    if isinstance(engine, ScriptedEngine):
        pytest.skip("the scripted engine chooses no tokens")
    for end in (2, OTHER_END):
        sampling = Sampling(temperature=0.0, allowed_token_ids=(end,))
        answer = await finished(
            await engine.generate(Work(f"end {end} {stream}", list(PROMPT), sampling, 8, 1, stream=stream))
        )
        assert (answer.token_ids(), answer.text(), answer.deltas[-1].finish) == ([end], "", "stop")


async def test_what_is_made_before_anyone_listens_is_not_lost(engine: Engine) -> None:
    generation = await engine.generate(work("early"))
    await asyncio.sleep(0.5)
    assert len((await finished(generation)).token_ids()) == 8


async def test_first_and_last_delta_carry_the_engines_clock(engine: Engine) -> None:
    answer = await finished(await engine.generate(work("clock")))
    first, last = answer.deltas[0].clock, answer.deltas[-1].clock
    assert first is not None and last is not None
    assert 0 < last.queued_s <= last.scheduled_s <= last.first_token_s <= last.last_token_s
    assert first.first_token_s == last.first_token_s


async def test_choices_are_told_apart_and_equal_when_greedy(engine: Engine) -> None:
    collected = Collected()
    collected.choices_left = 3
    (await engine.generate(work("choices", n=3))).listen(collected)
    await asyncio.wait_for(collected.ended.wait(), 60)
    assert {delta.index for delta in collected.deltas} == {0, 1, 2}
    assert collected.token_ids(0) == collected.token_ids(1) == collected.token_ids(2)


async def test_without_a_stream_the_tokens_are_the_same_in_fewer_deltas(engine: Engine) -> None:
    streamed = await finished(await engine.generate(work("streamed")))
    whole = await finished(await engine.generate(work("whole", stream=False)))
    assert whole.text() == streamed.text()
    assert len(whole.token_ids()) == len(streamed.token_ids())


async def test_an_aborted_generation_gives_nothing_and_costs_the_engine_nothing(
    engine: Engine,
) -> None:
    if isinstance(engine, ScriptedEngine):
        engine.script("word ", 0.2, *["word "] * 900)
    collected = Collected()
    generation = await engine.generate(work("aborted", max_output_tokens=900))
    generation.listen(collected)
    await asyncio.wait_for(collected.begun.wait(), 60)
    generation.abort()
    generation.abort()
    seen = len(collected.deltas)
    await asyncio.sleep(0.3)
    assert len(collected.deltas) == seen < 900
    steps = engine.steps
    await asyncio.sleep(0.5)
    assert engine.steps == steps, "the engine still works on it"
    assert len((await finished(await engine.generate(work("after abort")))).token_ids()) == 8


async def test_a_sink_that_raises_harms_no_other_generation(engine: Engine) -> None:
    if isinstance(engine, ScriptedEngine):
        pytest.skip("the scripted engine has no loop that generations share")

    class Faulty(Collected):
        def put(self, delta: Delta) -> None:
            raise RuntimeError("a fault in the service")

    (await engine.generate(work("faulty", max_output_tokens=100))).listen(Faulty())
    assert len((await finished(await engine.generate(work("neighbour")))).token_ids()) == 8


async def test_vllm_refuses_a_prompt_as_long_as_its_window_as_the_callers_error(engine: Engine) -> None:
    if isinstance(engine, ScriptedEngine):
        pytest.skip("the scripted engine does not look at prompts")
    too_long = Work("too long", [1000] * 1024, Sampling(), 1)
    with pytest.raises(CallerError):
        await engine.generate(too_long)
    assert len((await finished(await engine.generate(work("after refusal")))).token_ids()) == 8


@pytest.mark.engine
async def test_an_unknown_engine_argument_is_refused_by_name() -> None:
    from service.engine.vllm import VllmEngine

    with pytest.raises(
        EngineStartError, match=r"max_num_seq is no vLLM engine argument; did you mean max_num_seqs\?"
    ):
        VllmEngine("nowhere", {"max_num_seq": 4})


@pytest.mark.engine
async def test_a_model_that_cannot_be_loaded_fails_in_words_and_leaves_no_process(tmp_path: Path) -> None:
    import psutil

    from service.engine.vllm import VllmEngine

    before = psutil.Process().children(recursive=True)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    engine = VllmEngine(str(tmp_path), {})
    with pytest.raises(EngineStartError, match="the engine did not start"):
        await engine.start()
    with pytest.raises(EngineUnavailable):
        engine.check()
    assert [child for child in psutil.Process().children(recursive=True) if child not in before] == []


@pytest.mark.engine
async def test_every_error_of_vllm_has_a_place_in_our_tree() -> None:
    """Fails when vLLM grows an error that `translate` would call an internal fault."""
    import vllm.exceptions
    from vllm.v1.engine import exceptions as engine_exceptions

    from service.engine.vllm.translate import translate
    from service.errors import InternalFault

    classes = [
        value
        for module in (vllm.exceptions, engine_exceptions)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(classes) >= 10
    unplaced = {cls.__name__ for cls in classes if isinstance(translate(cls.__new__(cls)), InternalFault)}
    assert unplaced == {"VLLMError"}, "only the root may be unknown"
