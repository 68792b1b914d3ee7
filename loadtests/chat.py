"""One chat request over Locust's fast client: sent, read line by line, timed, judged."""

from __future__ import annotations

import os
import time
from typing import Any

import gevent
import orjson
from geventhttpclient.client import HTTPClientPool
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from locust.contrib.fasthttp import FastHttpSession, ResponseContextManager

from loadtests.answer import Answer, refusal_sentence, seconds_of
from loadtests.plan import Plan
from loadtests.sample import Outcome, Sample
from loadtests.sse import EventReader
from loadtests.workloads import Ask

PATH = "/v1/chat/completions"
CONNECTIONS = 10_000  # a user's own pool has ten, and then streams wait for each other
CONNECT_S = 10.0
BREAKS = (HTTPConnectionClosed, HTTPParseError, OSError)


class Chat:
    """Sends the requests of a plan."""

    def __init__(self, plan: Plan, key: str) -> None:
        self.pool = HTTPClientPool(
            concurrency=CONNECTIONS, connection_timeout=CONNECT_S, network_timeout=plan.patience_s
        )
        self._plan = plan
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def send(self, session: FastHttpSession, sample: Sample, ask: Ask, name: str, zero: float) -> str:
        """Fills in the sample and returns what the answer says. `zero` is the intended instant, by
        `time.perf_counter`; `name` is what Locust counts it under.
        """
        sample.trace_id = os.urandom(16).hex()
        answer = Answer()
        body = self._body(ask)
        headers = {**self._headers, "traceparent": f"00-{sample.trace_id}-{os.urandom(8).hex()}-01"}
        limit = gevent.Timeout.start_new(self._plan.patience_s)
        sample.sent_ms = _since(zero)
        try:
            with session.post(
                PATH,
                data=body,  # type: ignore[arg-type]  # bytes are sent as they are
                headers=headers,
                name=name,
                stream=True,
                catch_response=True,
                allow_redirects=False,
            ) as response:
                sample.headers_ms = _since(zero)
                self._read(response, ask, answer, sample, zero)
                _report(response, sample)
        finally:
            limit.close()
        return "".join(answer.text)

    def _body(self, ask: Ask) -> bytes:
        body: dict[str, Any] = {
            "model": self._plan.model,
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
        }
        if ask.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps(body | (self._plan.extras or {}))

    def _read(
        self, response: ResponseContextManager, ask: Ask, answer: Answer, sample: Sample, zero: float
    ) -> None:
        sample.status = response.status_code
        outcome: Outcome | None = None
        try:
            if sample.status == 200:
                left = _read_stream(response, ask, answer) if ask.streamed else _read_whole(response, answer)
                outcome = "left" if left else None
            else:
                _read_refusal(response, sample)
        except gevent.Timeout:
            outcome = "timeout"
        except BREAKS as exc:
            sample.error = f"{type(exc).__name__}: {exc}"
        sample.end_ms = _since(zero)
        _fill(sample, answer, zero)
        sample.outcome = outcome or _judged(sample, answer)
        sample.error = sample.error or answer.error


def _read_stream(response: ResponseContextManager, ask: Ask, answer: Answer) -> bool:
    """Whether we left early. Reads lines, since a read of a fixed size waits until so much is there."""
    reader, stream = EventReader(), response.stream
    while line := stream.readline(b"\n"):
        at = time.perf_counter()
        for data in reader.feed(bytes(line)):
            answer.take(data, at)
        if ask.leave_after is not None and len(answer.said_at) >= ask.leave_after:
            stream.release()  # not at its end, so the connection is closed
            return True
    for data in reader.feed(bytes(stream.read())):
        answer.take(data, time.perf_counter())
    return False


def _read_whole(response: ResponseContextManager, answer: Answer) -> bool:
    body = bytes(response.content or b"")
    answer.take_whole(body, time.perf_counter())
    return False


def _read_refusal(response: ResponseContextManager, sample: Sample) -> None:
    if sample.status == 0:  # there was no response, and the reason is kept with it
        sample.headers_ms = None
        response.raise_for_status()
        return
    sample.error = refusal_sentence(bytes(response.content or b""))
    told = str(response.headers.get("retry-after", "")) if response.headers else ""
    sample.retry_after_s = seconds_of(told, time.time())


def _fill(sample: Sample, answer: Answer, zero: float) -> None:
    """The figures of an answer, as far as it came."""
    times = [round((at - zero) * 1e3, 3) for at in answer.said_at]
    if times:
        sample.first_ms, sample.last_ms = times[0], times[-1]
    sample.gaps_ms = [round(after - before, 3) for before, after in zip(times, times[1:], strict=False)]
    sample.tokens, sample.counted = answer.tokens, "completion_tokens" in answer.usage
    sample.prompt_tokens, sample.cached_tokens = answer.prompt_tokens, answer.cached_tokens
    sample.phases = answer.phases


def _judged(sample: Sample, answer: Answer) -> Outcome:
    """How a request ended that neither ran out of time nor was left."""
    if sample.status == 0:
        return "no_connection"
    if sample.status == 429 or (sample.status == 503 and sample.retry_after_s is not None):
        return "refused"
    if sample.status != 200:
        return "http_error"
    if answer.error:
        return "error_event"
    if not answer.whole or sample.error:
        return "cut"
    return "ok" if answer.said_at else "empty"


def _report(response: ResponseContextManager, sample: Sample) -> None:
    """Tell Locust, whose own time is that of the headers, the time to the first token in its place."""
    response.request_meta["request_type"] = "TTFT"
    first_ms = sample.end_ms if sample.first_ms is None else sample.first_ms
    response.request_meta["response_time"] = first_ms
    if sample.outcome in ("ok", "left"):
        response.success()
    else:
        response.failure(f"{sample.outcome} {sample.status}: {sample.error[:80]}")


def _since(zero: float) -> float:
    return round((time.perf_counter() - zero) * 1e3, 3)
