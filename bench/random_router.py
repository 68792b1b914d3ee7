"""A request router for Serve, to compare with: any replica, whatever it has cached or has to do."""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class RandomRouter(RequestRouter):  # type: ignore[misc]  # Ray is in an environment of its own
    """What a balancer without knowledge does."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All of them, each a rank of its own, in any order."""
        return [[replica] for replica in random.sample(candidate_replicas, len(candidate_replicas))]
