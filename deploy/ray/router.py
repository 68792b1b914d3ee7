"""Serve's request router, with our policy in it. It runs in each proxy."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deploy.ray.placement import Placement
from deploy.ray.prefix import apart


class PrefixAffinityRouter(RequestRouter):
    """Requests that begin alike go to the same replica while it is not overloaded.

    How a request begins is told by `edge.Marked`, in the one field of Serve's metadata that a header sets.
    """

    def initialize_state(self, **options: Any) -> None:
        self._placement = Placement[ReplicaID](**options)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All of them, each a rank of its own: who refuses is followed by the next."""
        marks = []
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # when all have refused
            marks = apart(pending_request.metadata.session_id)
        loads = await self._loads(candidate_replicas)
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        return [[replicas[name]] for name in self._placement.place(marks, loads)]

    async def _loads(self, replicas: list[RunningReplica]) -> dict[ReplicaID, int]:
        """How many requests each replica has. Serve forgets that when none has come or gone for ten seconds,
        in which one that writes long answers may be full: so that one is asked, and is taken for full when
        it does not say."""
        loads = {
            replica.replica_id: self.replica_queue_len_cache.get(replica.replica_id) for replica in replicas
        }
        unknown = [replica for replica in replicas if loads[replica.replica_id] is None]
        if unknown:
            loads |= {replica.replica_id: load for replica, load in await self._probe_queue_lens(unknown, 0)}
        full = {replica.replica_id: replica.max_ongoing_requests for replica in replicas}
        return {name: full[name] if load is None else load for name, load in loads.items()}
