"""Spans of the real engine's work: in the caller's trace, in wall time, the longer phase the longer one."""

from __future__ import annotations

import secrets
import time
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.conftest import body
from tests.serving import until
from tests.telemetry.collector import GrpcCollector

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
PHASES = ("render", "admission", "queue", "prefill", "decode")


def lengths(web: httpx.Client, collector: GrpcCollector, **fields: Any) -> dict[str, float]:
    """Seconds of each phase of one answer, and of all of it, after a look at whose and when they were."""
    trace, caller, began = secrets.token_hex(16), secrets.token_hex(8), time.time()
    headers = {"traceparent": f"00-{trace}-{caller}-01"}
    assert web.post(CHAT, json=body(**fields), headers=headers).status_code == 200
    ended = time.time()

    def found() -> dict[str, Span]:
        return {span.name: span for span in collector.spans if span.trace_id.hex() == trace}

    until(lambda: f"POST {CHAT}" in found())
    spans = found()
    root = spans[f"POST {CHAT}"]
    [chat] = [span for name, span in spans.items() if name.startswith("chat ")]
    assert root.parent_span_id.hex() == caller and chat.parent_span_id == root.span_id
    phases = [span for span in spans.values() if span.parent_span_id == chat.span_id]
    assert {span.name for span in phases} <= set(PHASES)
    for span in spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert began - 1 < span.start_time_unix_nano / 1e9 < ended + 1
    seconds = {
        name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in spans.items()
    }
    assert sum(seconds[span.name] for span in phases) <= seconds[root.name] + 0.001
    return {"decode": 0.0, **seconds}


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prompt_is_prefill_and_a_long_answer_decode(
    web: httpx.Client, collector: GrpcCollector, stream: bool
) -> None:
    long = [{"role": "user", "content": f"{time.monotonic_ns()} " + "word " * 850}]
    read = lengths(web, collector, messages=long, max_tokens=1, stream=stream)
    assert read["prefill"] > read["decode"] == 0
    cached = lengths(web, collector, messages=long, max_tokens=1, stream=stream)
    assert cached["prefill"] >= 0 and cached["decode"] == 0
    written = lengths(web, collector, max_tokens=200, ignore_eos=True, stream=stream)
    assert written["decode"] > written["prefill"] > 0
