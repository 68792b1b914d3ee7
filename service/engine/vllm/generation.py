"""vLLM's outputs to deltas, handed over from its own output loop.

vLLM makes a `RequestOutput` with a `CompletionOutput` in it for every token, for its collector. A token in
the middle of a plain answer is its text and its id; so where that is all, `Shortcut` stands one step
earlier, and the two objects are never made.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput

from service.engine.protocol import Delta, EngineClock, Generation, TokenLogprob
from service.engine.vllm.translate import translate
from service.errors import EngineUnavailable, InternalFault, ServiceError

log = logging.getLogger(__name__)

LEAST_LOGPROB = -9999.0  # JSON knows no infinity; OpenAI writes "very unlikely" so, and so does vLLM


class VllmGeneration(Generation):
    """Takes the place of vLLM's collector: what the output loop puts goes straight to the sink."""

    def __init__(self, collector: Any, abort: Callable[[str], None], state: Any = None) -> None:
        """`state` is vLLM's own of this request, when its plain tokens may take the short way."""
        super().__init__()
        self._id = collector.request_id
        self._abort = abort
        self._preemptions: dict[int, int] = {}  # noted so far, for choices that have had a delta
        self._running = True
        collector.put = self._put
        if collector.output is not None:  # made while the request was still being sent
            self._put(collector.output)
        if state is not None:
            state.make_request_output = Shortcut(state, self)

    def abort(self) -> None:
        if self._running:
            self._running = False
            self._abort(self._id)

    def _put(self, output: RequestOutput | Exception) -> None:
        """Called by vLLM's output loop, which serves every request: nothing may be raised into it."""
        if not self._running:
            return
        try:
            if isinstance(output, Exception):
                self._fail(translate(output))
            else:
                self._take(output)
        except Exception:
            self._end_for_fault()

    def plain(self, text: str, token_ids: Sequence[int]) -> None:
        """A step of the only choice that brings nothing but text. As `_put`, it raises nothing."""
        if self._running:
            try:
                self._deliver(Delta(0, text, token_ids))
            except Exception:
                self._end_for_fault()

    def _end_for_fault(self) -> None:
        log.exception("a delta could not be handed over; its request is ended")
        with contextlib.suppress(Exception):  # the same that has just failed may fail again
            self._fail(InternalFault("This answer could not be passed on; the server's log has the rest."))

    def _take(self, output: RequestOutput) -> None:
        for choice in output.outputs:
            index, finish = choice.index, choice.finish_reason
            delta = Delta(index, choice.text, choice.token_ids)
            if choice.logprobs is not None:
                delta.logprobs = _logprobs(choice.logprobs)
            preemptions = output.metrics.num_preemptions if output.metrics is not None else 0
            if finish is not None or preemptions > self._preemptions.get(index, -1):
                self._preemptions[index] = preemptions
                delta.clock = _clock(output)
                if finish == "stop" or finish == "length":
                    delta.finish = finish
                    if isinstance(choice.stop_reason, str):  # a number is a token's
                        delta.stopped_by = choice.stop_reason
                elif finish is not None:
                    return self._fail(EngineUnavailable(f"The engine ended this answer early ({finish})."))
            self._deliver(delta)
        if output.finished:
            self._running = False

    def _fail(self, error: ServiceError) -> None:
        self.abort()
        self._deliver_failure(error)


class Shortcut:
    """In place of `RequestState.make_request_output`, where there is one choice, in deltas, without logprobs.

    Plain steps go to `generation.plain` and vLLM gets None for them; all others go vLLM's way. The names of
    the parameters are vLLM's, which passes some of them by name.
    """

    __slots__ = ("_make", "_next_text", "_plain", "_preemptions", "_stats")

    def __init__(self, state: Any, generation: VllmGeneration) -> None:
        self._make = state.make_request_output
        self._next_text = state.detokenizer.get_next_output_text
        self._stats = state.stats
        self._plain = generation.plain
        self._preemptions = -1  # noted so far; the first token is not plain: it brings the clock

    def __call__(
        self, new_token_ids: list[int], pooling_output: Any, finish_reason: Any, *rest: Any, **more: Any
    ) -> RequestOutput | None:
        preemptions = self._stats.num_preemptions
        if finish_reason is None and preemptions == self._preemptions:
            self._plain(self._next_text(False, True), new_token_ids)
            return None
        self._preemptions = preemptions
        return self._make(new_token_ids, pooling_output, finish_reason, *rest, **more)


def _logprobs(flat: FlatLogprobs) -> list[TokenLogprob]:
    """The engine lists for each place the chosen token first, then the likeliest."""
    places = []
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        logprobs = [
            max(LEAST_LOGPROB, value) if value == value else LEAST_LOGPROB
            for value in flat.logprobs[start:end]
        ]
        ids = flat.token_ids[start:end]
        places.append(TokenLogprob(ids[0], logprobs[0], tuple(zip(ids[1:], logprobs[1:], strict=True))))
    return places


def _clock(output: RequestOutput) -> EngineClock | None:
    stats = output.metrics
    if stats is None:
        return None
    return EngineClock(
        queued_s=stats.queued_ts,
        scheduled_s=stats.scheduled_ts,
        first_token_s=stats.first_token_ts,
        last_token_s=stats.last_token_ts,
        cached_tokens=output.num_cached_tokens or 0,
        preemptions=stats.num_preemptions,
    )
