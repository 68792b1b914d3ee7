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
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        loads = {name: self.replica_queue_len_cache.get(name) or 0 for name in replicas}
        return [[replicas[name]] for name in self._placement.place(marks, loads)]
