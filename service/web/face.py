"""What tells one API from another: how a request is read, how its answer and its errors are written.

Behind every face stands the same sentence (`Chat.open`), with the same budgets, admission and telemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from service.admission.tenant import Tenant
from service.chat.reply import Reply
from service.chat.request import ChatRequest
from service.engine.protocol import Delta
from service.errors import ServiceError
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.wire import JsonObject


class Encoder(Protocol):
    """The bytes of one streamed answer. `chunk` is called for every token: it must be quick."""

    opening: bytes  # sent before anything else
    keep_alive: bytes  # sent when there is nothing to say

    def chunk(self, delta: Delta) -> bytes:
        """What a delta brings; empty where it has nothing to show yet."""

    def end(self) -> bytes:
        """What follows the last delta; made when its turn comes, so that it tells of a slow reader."""

    def failed(self, error: ServiceError) -> bytes:
        """The end of a stream whose answer has failed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been read.

    One wire request may ask for several answers, which leave together. `whole` makes the body of an
    answer that is complete, from its choices; `in_their_words` turns a refusal's names into the caller's.
    """

    requests: Sequence[ChatRequest]
    ignored: Sequence[str]
    encoder: Callable[[Reply], Encoder]
    whole: Callable[[Reply, Sequence[Whole], Sequence[Phases]], Any]
    in_their_words: Callable[[ServiceError], None] = lambda error: None

    @property
    def streamed(self) -> bool:
        """Whether the answer leaves as a stream of events."""
        return bool(self.requests[0].stream)


class Face(Protocol):
    """One API's route for answers."""

    route: str

    def new_id(self) -> str:
        """A name for an answer."""

    def read(self, body: JsonObject, tenant: Tenant) -> Asked:
        """A checked request.

        Raises:
            CallerError: naming the field that cannot be used.
        """
