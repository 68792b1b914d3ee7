"""What the engine sends, read from a real socket as vLLM's engine process writes to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
import zmq
import zmq.asyncio
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

from service.engine.vllm.outputs import Outputs


class Wire:
    """Both ends: the engine's, and a client whose outputs are read."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._encoder = MsgpackEncoder()
        self._engine = context.socket(zmq.PUSH)
        self._engine.bind(address)
        self._context = zmq.asyncio.Context(context)
        self.socket = self._context.socket(zmq.PULL)
        self.socket.connect(address)
        client = SimpleNamespace(
            resources=BackgroundResources(self._context, output_socket=self.socket),
            decoder=MsgpackDecoder(EngineCoreOutputs),
            utility_results={},
        )
        client._format_exception = AsyncMPClient._format_exception.__get__(client)
        self.client: Any = client
        self.outputs = Outputs(self.client)

    def send(self, outputs: EngineCoreOutputs) -> None:
        self._engine.send_multipart(self._encoder.encode(outputs))

    def say_dead(self) -> None:
        self._engine.send(EngineCoreProc.ENGINE_CORE_DEAD)

    def close(self) -> None:
        self.socket.close(0)
        self._engine.close(0)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


@asynccontextmanager
async def open_wire(context: zmq.Context[Any]) -> AsyncIterator[tuple[Wire, asyncio.Task[None]]]:
    wire = Wire(context, "inproc://outputs")
    watching = asyncio.create_task(wire.outputs.stay())
    try:
        yield wire, watching
    finally:
        wire.close()  # before the task is cancelled, as vLLM does it
        watching.cancel()
        await asyncio.wait({watching})


def tokens(*ids: int) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=[EngineCoreOutput("request", list(ids))])


def ids_of(outputs: EngineCoreOutputs) -> list[int]:
    return [token for output in outputs.outputs for token in output.new_token_ids]


def test_outputs_come_in_their_order_whether_waited_for_or_already_there(context: zmq.Context[Any]) -> None:
    async def check() -> list[bool]:
        async with open_wire(context) as (wire, _):
            loop = asyncio.get_running_loop()
            as_sent: list[bool] = []
            for burst in range(50):  # one by one, several at once, some only when they are waited for
                sent = [burst * 10 + at for at in range(burst % 4 + 1)]
                for at, one in enumerate(sent):
                    loop.call_later(0.001 * at * (burst % 2), wire.send, tokens(one))
                as_sent += [ids_of(await asyncio.wait_for(wire.outputs.next(), 10)) == [one] for one in sent]
                await asyncio.sleep(0)
            return as_sent

    assert all(uvloop.run(check()))


def test_steps_without_outputs_are_passed_over(context: zmq.Context[Any]) -> None:
    async def check() -> list[int]:
        async with open_wire(context) as (wire, _):
            wire.send(EngineCoreOutputs())
            wire.send(tokens(7))
            return ids_of(await asyncio.wait_for(wire.outputs.next(), 10))

    assert uvloop.run(check()) == [7]


def test_answers_to_questions_reach_those_who_asked(context: zmq.Context[Any]) -> None:
    async def check() -> Any:
        async with open_wire(context) as (wire, _):
            asked = wire.client.utility_results[5] = asyncio.get_running_loop().create_future()
            wire.send(EngineCoreOutputs(utility_output=UtilityOutput(5, result=UtilityResult(True))))
            reading = asyncio.create_task(wire.outputs.next())
            answer = await asyncio.wait_for(asked, 10)
            reading.cancel()
            return answer

    assert uvloop.run(check()) is True


def test_an_engine_that_says_it_is_dead_has_no_more_outputs(context: zmq.Context[Any]) -> None:
    async def check() -> bool:
        async with open_wire(context) as (wire, _):
            wire.say_dead()
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(wire.outputs.next(), 10)
            return bool(wire.client.resources.engine_dead)

    assert uvloop.run(check())


def test_whoever_waits_when_the_socket_is_closed_is_told(context: zmq.Context[Any]) -> None:
    async def check() -> None:
        async with open_wire(context) as (wire, watching):
            reading = asyncio.create_task(wire.outputs.next())
            await asyncio.sleep(0.05)
            wire.client.resources.engine_dead = True
            wire.socket.close(0)
            watching.cancel()
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(reading, 10)
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(wire.outputs.next(), 10)

    uvloop.run(check())
