"""What was foreseen of requests that got a token, held against what came."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry, Histogram

from service.prompt.causes import Cause
from service.telemetry.buckets import PREDICTION_RATIO
from service.telemetry.families import counters
from service.telemetry.record import RequestRecord


class Foresight:
    """Counts why prompts were not in the prefix cache, and how wrong predicted first tokens were."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._misses = counters(
            registry,
            "twophase_cache_miss_total",
            "Answers whose prompt was not all in the prefix cache, by why its match with earlier ones ends",
            {"cause": get_args(Cause)},
        )
        self._error_ratio = Histogram(
            "twophase_prediction_error_ratio",
            "Time to the first token as it was predicted at admission, over the time it took: 1 is right, "
            "below 1 the token came later than predicted",
            buckets=PREDICTION_RATIO,
            registry=registry,
        )

    def observe(self, record: RequestRecord) -> None:
        if record.miss is not None:
            self._misses[record.miss.cause,].inc()
        predicted_s, first_s = record.predicted_first_token_s, record.first_token_s
        if predicted_s is not None and first_s is not None and first_s > record.received_s:
            self._error_ratio.observe(predicted_s / (first_s - record.received_s))
