"""Deltas to bytes, as functions: whatever the text, the stream carries it exactly."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from service.budget.plan import Budget
from service.chat.answer import Answer
from service.chat.holding import Holding
from service.engine.protocol import Delta, Generation
from service.errors import InvalidValue
from service.telemetry.metrics import Metrics
from service.telemetry.observer import Observer
from service.telemetry.traces import Traces
from service.web.encode import ChunkEncoder, error_event
from service.web.shape import error_body

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class NoGeneration(Generation):
    """Hands nothing over."""

    def abort(self) -> None:
        """Nothing runs."""


def answer(model: str = "m", n: int = 1) -> Answer:
    """An answer that has just been opened."""
    budget = Budget(100, 99, "window", 90, "window", 10, 4, 50)
    observation = Observer(Metrics(CollectorRegistry()), Traces()).open("req-1", [], model=model)
    observation.record.n = n
    observation.record.submitted(n)
    return Answer(budget, NoGeneration(), observation, Holding(lambda: None))


def events(raw: bytes) -> list[Any]:
    """The parsed data lines; each event is one line and ends with an empty one."""
    blocks = raw.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


@given(model=text, pieces=st.lists(text, min_size=1, max_size=8), with_usage=st.booleans())
def test_joined_deltas_are_the_text_and_every_chunk_is_one_line_of_json(
    model: str, pieces: list[str], with_usage: bool
) -> None:
    encoder = ChunkEncoder(answer(model), with_usage=with_usage)
    last = len(pieces) - 1
    deltas = [Delta(0, piece, [1], "stop" if at == last else None) for at, piece in enumerate(pieces)]
    chunks = events(b"".join(encoder.chunk(delta) for delta in deltas))
    said = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"].get("content", "") for choice in said) == "".join(pieces)
    assert [choice["finish_reason"] for choice in said][-1] == "stop"
    assert sum(choice["finish_reason"] is not None for choice in said) == 1
    assert [choice["delta"].get("role") for choice in said] == ["assistant"] + [None] * (len(said) - 1)
    assert all(chunk["model"] == model for chunk in chunks)
    assert all(("usage" in chunk) is with_usage for chunk in chunks)


@given(order=st.lists(st.sampled_from([0, 1, 2]), max_size=30))
def test_choices_that_interleave_stay_apart(order: list[int]) -> None:
    encoder = ChunkEncoder(answer(n=3), with_usage=False)
    chunks = events(b"".join(encoder.chunk(Delta(index, str(index), [1])) for index in order))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == order
    for index in set(order):
        mine = [c["choices"][0]["delta"] for c in chunks if c["choices"][0]["index"] == index]
        assert [delta["content"] for delta in mine] == [str(index)] * len(mine)
        assert [("role" in delta) for delta in mine] == [True] + [False] * (len(mine) - 1)


@given(message=text, param=text)
def test_an_error_event_is_one_line_in_the_error_shape(message: str, param: str) -> None:
    error = InvalidValue(message, param=param)
    assert events(error_event(error)) == [error_body(error)]
    assert error_body(error) == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": "invalid_value",
        }
    }
