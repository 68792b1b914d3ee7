"""The bare engine: vLLM's AsyncLLM in a process of its own, with one task per request and no HTTP.

`python -m bench.bare MODEL ENGINE_ARGS` prints a line when the engine is there, then reads jobs, one a
line, and prints what it measured. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from time import perf_counter
from typing import Any, TextIO

import uvloop

from bench.client import SETTLE_S, Job
from bench.meter import Meter
from bench.outcome import Outcome, Timing, outcome
from bench.shapes import messages
from bench.stream import BadStream

READY = "ready"


class Bare:
    """An engine, and the consumer that is its whole front end."""

    def __init__(self, model: str, args: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        # The same context as a server's: it decides how large a batch may become.
        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(model=model, **args), usage_context=UsageContext.OPENAI_API_SERVER
        )
        self._tokenizer = self.llm.get_tokenizer()

    async def run(self, job: Job) -> Outcome:
        """The job's requests; prompts are rendered and tokenized before the clock starts.

        Raises:
            BadStream: an answer is incomplete or of another length.
        """
        shape = job.shape
        inputs = [self._input(messages(shape, job.turn, index)) for index in range(shape.requests)]
        waiting = iter(enumerate(inputs))
        meter = Meter(os.getpid())
        done = await asyncio.gather(*(self._work(job, waiting) for _ in range(shape.streams)))
        await asyncio.sleep(SETTLE_S)
        return outcome([timing for timings in done for timing in timings], shape.tokens, meter.stop())

    def _input(self, messages: list[dict[str, str]]) -> Any:
        from vllm.inputs.engine import tokens_input

        rendered = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return tokens_input(self._tokenizer.encode(rendered, add_special_tokens=False))

    async def _work(self, job: Job, waiting: Iterator[tuple[int, Any]]) -> list[Timing]:
        return [await self._ask(f"{job.turn}-{index}", given, job.shape.tokens) for index, given in waiting]

    async def _ask(self, name: str, given: Any, tokens: int) -> Timing:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        timing = Timing(perf_counter())
        got, finish = 0, None
        async for output in self.llm.generate(given, params, name):
            choice = output.outputs[0]
            got += len(choice.token_ids)
            finish = choice.finish_reason
            if timing.first is None and choice.text:
                timing.first = perf_counter()
        timing.ended = perf_counter()
        if got != tokens or finish != "length":
            raise BadStream(f"the engine made {got} tokens where {tokens} were asked for, finish {finish}")
        return timing


async def serve(model: str, args: dict[str, Any], answers: TextIO) -> None:
    """Do jobs until there are no more."""
    bare = Bare(model, args)
    try:
        gc.collect()
        gc.freeze()  # what is loaded stays; searching it for garbage stops every stream for half a second
        print(READY, file=answers, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            done = await bare.run(Job.from_json(line))
            print(json.dumps(asdict(done)), file=answers, flush=True)
    finally:
        bare.llm.shutdown()


def main() -> None:
    """Entry point of the bare engine's process."""
    # What the engine prints goes to the log; the pipe is for answers alone, and no child inherits it.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    uvloop.run(serve(sys.argv[1], json.loads(sys.argv[2]), answers))


if __name__ == "__main__":
    main()
