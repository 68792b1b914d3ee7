"""What the engine sends, read from its socket without zmq's coroutines.

vLLM reads in one task, through a future of zmq's and the events behind it, and hands over through a queue to
a second one: for a lone stream that is a fifth of what a token costs. Here whoever wants the next outputs
reads them, and waits for the socket only when nothing is there.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

import zmq
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient, _process_utility_output
from vllm.v1.engine.exceptions import EngineDeadError


class Outputs:
    """In place of an `AsyncMPClient`'s task and queue. The socket has no other reader."""

    def __init__(self, client: AsyncMPClient) -> None:
        self._client = client
        self._resources = client.resources
        self._socket: zmq.Socket[bytes] = zmq.Socket.shadow(client.resources.output_socket)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    async def next(self) -> Any:
        """The next outputs with anything in them, as vLLM's `get_output_async`.

        Raises:
            EngineDeadError: there will be none.
        """
        try:
            while True:
                outputs = await self._received()
                if outputs.utility_output:
                    _process_utility_output(outputs.utility_output, self._client.utility_results)
                elif outputs.outputs or outputs.scheduler_stats:
                    return outputs
        except Exception as exc:
            raise self._client._format_exception(exc) from None

    async def stay(self) -> None:
        """Watch the socket until this is cancelled, which is how vLLM says that it closes it."""
        # A number of our own for it: vLLM closes the socket's before it cancels.
        descriptor = os.dup(cast(int, self._socket.get(zmq.FD)))
        self._loop.add_reader(descriptor, self._wake)
        try:
            await self._loop.create_future()
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._closed = True
            self._wake()

    async def _received(self) -> Any:
        # The descriptor speaks only of what comes after the socket was found empty.
        while not self._closed:
            if cast(int, self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                self._resources.validate_alive(frames)
                return self._client.decoder.decode(frames)
            self._waiter = self._loop.create_future()
            await self._waiter
        raise EngineDeadError

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def read_directly(llm: AsyncLLM) -> None:
    """Before `llm` is first asked: let its outputs come this way, where they come from one engine."""
    client = llm.engine_core
    if type(client) is not AsyncMPClient or llm.vllm_config.parallel_config.enable_fault_tolerance:
        return  # several engines send more than outputs
    outputs = Outputs(client)
    client.get_output_async = outputs.next
    client.resources.output_queue_task = asyncio.create_task(outputs.stay(), name="outputs")
    llm._run_output_handler()  # from now on it alone reads, also what the first question is answered with
