"""The traces of the whole service, received by a real collector over gRPC."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from service.errors import EngineUnavailable
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.sse import read
from tests.telemetry.collector import GrpcCollector, grpc_collector
from tests.wire import connect

CHAT = "/v1/chat/completions"
TRACE = "11112222333344445555666677778888"
CALLER = "aaaabbbbccccdddd"
PAGE = "https://chat.example.org"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrpcCollector]:
    """A collector that the service is told of before it starts."""
    with grpc_collector() as (collector, port):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield collector


@pytest.fixture
def server(
    collector: GrpcCollector, settings: Settings, engine: ScriptedEngine, renderer: Renderer
) -> Iterator[Running]:
    """The service, exporting to the collector."""
    with running(settings, engine, renderer) as server:
        yield server


@contextmanager
def surrounded(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    """The service with all that can surround a request: traces, and pages of another origin."""
    with running(settings.model_copy(update={"cors_origins": (PAGE,)}), engine, renderer) as server:
        yield server


def from_a_page(**fields: object) -> bytes:
    """A chat request as the browser sends it for a page of that origin."""
    content = json.dumps(body(**fields)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nOrigin: {PAGE}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content


def tree(collector: GrpcCollector, count: int) -> dict[str, Span]:
    """The spans of one request by name, after checking that they are one contiguous, ended tree."""
    spans = collector.wait_for(count)
    assert len(spans) == count, [span.name for span in spans]
    by_name = {span.name: span for span in spans}
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert abs(span.start_time_unix_nano / 1e9 - time.time()) < 60
        parent = by_id.get(span.parent_span_id)
        if parent is not None:
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    return by_name


def under(spans: dict[str, Span], parent: str) -> list[str]:
    """The names of a span's children, by time, after checking that nothing lies between them."""
    children = sorted(
        (span for span in spans.values() if span.parent_span_id == spans[parent].span_id),
        key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano),
    )
    for one, next_one in zip(children, children[1:], strict=False):
        assert one.end_time_unix_nano == next_one.start_time_unix_nano
    return [span.name for span in children]


def attributes(span: Span) -> dict[str, object]:
    """A span's attributes as plain values."""
    return {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_one_tree_below_its_caller(
    client: httpx.Client, collector: GrpcCollector, stream: bool
) -> None:
    assert client.post(CHAT, json=body(stream=stream), headers=HEADERS).status_code == 200
    spans = tree(collector, 7)
    root, chat = spans[f"POST {CHAT}"], spans["chat smollm2-135m-instruct"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert root.parent_span_id.hex() == CALLER and root.kind == Span.SPAN_KIND_SERVER
    assert chat.parent_span_id == root.span_id and chat.kind == Span.SPAN_KIND_INTERNAL
    assert under(spans, chat.name) == ["render", "admission", "queue", "prefill", "decode"]
    assert root.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("/v1/completions", {"prompt": "Once upon"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
    ],
)
def test_every_face_has_its_own_name_above_the_same_tree(
    client: httpx.Client, collector: GrpcCollector, route: str, asked: dict[str, object]
) -> None:
    answer = client.post(route, json=asked, headers=HEADERS).json()
    spans = tree(collector, 7)
    root, chat = spans[f"POST {route}"], spans["chat smollm2-135m-instruct"]
    assert root.parent_span_id.hex() == CALLER and root.kind == Span.SPAN_KIND_SERVER
    assert attributes(root)["http.route"] == route
    assert under(spans, chat.name) == ["render", "admission", "queue", "prefill", "decode"]
    assert attributes(chat)["gen_ai.response.id"] == answer["id"]


def test_attributes_name_operation_and_tokens_and_never_the_text(
    client: httpx.Client, collector: GrpcCollector
) -> None:
    secret = "the heron's password"
    client.post(CHAT, json=body(messages=[{"role": "user", "content": secret}]))
    spans = tree(collector, 7)
    chat = attributes(spans["chat smollm2-135m-instruct"])
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.usage.output_tokens"] == 4
    assert not any(secret in str(span) or "word word" in str(span) for span in spans.values())


def test_words_are_in_spans_when_the_operator_wants_them(
    collector: GrpcCollector, settings: Settings, engine: ScriptedEngine, renderer: Renderer
) -> None:
    engine.script("Good ", "morning")
    telling = settings.model_copy(update={"trace_content": True})
    with running(telling, engine, renderer) as server, server.client() as client:
        client.post(CHAT, json=body(messages=[{"role": "user", "content": "Hello?"}], max_tokens=9))
        chat = next(span for name, span in tree(collector, 7).items() if name.startswith("chat "))
    words = {item.key: item.value.string_value for item in chat.attributes}
    [asked] = json.loads(words["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "Hello?"}]}
    [answered] = json.loads(words["gen_ai.output.messages"])
    assert answered["parts"] == [{"type": "text", "content": "Good morning"}]
    assert answered["finish_reason"] == "stop"


def test_without_a_caller_each_request_is_a_trace_of_its_own(
    client: httpx.Client, collector: GrpcCollector
) -> None:
    for _ in range(2):
        client.post(CHAT, json=body())
    spans = collector.wait_for(14)
    assert len({span.trace_id for span in spans}) == 2
    assert sum(not span.parent_span_id for span in spans) == 2


def test_a_refused_request_has_an_ended_tree_and_is_no_error_of_ours(
    client: httpx.Client, collector: GrpcCollector
) -> None:
    assert client.post(CHAT, json=body(max_tokens=0), headers=HEADERS).status_code == 400
    root = tree(collector, 1)[f"POST {CHAT}"]
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert attributes(root)["http.response.status_code"] == 400


def test_a_failed_request_has_an_ended_tree_up_to_where_it_failed(
    client: httpx.Client, collector: GrpcCollector, engine: ScriptedEngine
) -> None:
    engine.script("half ", 0.05, EngineUnavailable("The engine has stopped; try again later."))
    client.post(CHAT, json=body(stream=True), headers=HEADERS)
    spans = tree(collector, 7)
    assert spans[f"POST {CHAT}"].status.code == Status.STATUS_CODE_ERROR
    assert under(spans, "chat smollm2-135m-instruct")[-1] == "decode"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_an_engine_that_fails_before_the_first_token_is_an_error_in_answer_count_and_trace(
    client: httpx.Client, collector: GrpcCollector, engine: ScriptedEngine, taken: bool, stream: bool
) -> None:
    fault = EngineUnavailable("The engine has stopped; try again later.")
    if taken:
        engine.script(0.05, fault)
    else:
        engine.refusal = fault
    answer = client.post(CHAT, json=body(stream=stream), headers=HEADERS)
    if taken and stream:
        events = read(answer)
        assert len(events.data) == 1 and events.error and events.error["code"] == "engine_unavailable"
    else:
        assert answer.status_code == 503 and answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "engine_unavailable"
    assert '"finish_reason"' not in answer.text and "[DONE]" not in answer.text
    spans = tree(collector, 5)
    for name in (f"POST {CHAT}", "chat smollm2-135m-instruct"):
        assert spans[name].status.code == Status.STATUS_CODE_ERROR
    page = client.get("/metrics").text
    assert 'twophase_requests_total{outcome="engine_error"} 1.0' in page
    assert 'twophase_requests_total{outcome="ok"} 0.0' in page


def test_an_abandoned_request_has_an_ended_tree_and_is_no_error(
    client: httpx.Client, collector: GrpcCollector, engine: ScriptedEngine
) -> None:
    engine.script(30.0, "never")
    with client.stream("POST", CHAT, json=body(stream=True), headers=HEADERS):
        pass
    spans = tree(collector, 5)
    chat = "chat smollm2-135m-instruct"
    assert under(spans, chat) == ["render", "admission", "queue_or_prefill"]
    assert spans[f"POST {CHAT}"].status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize("telling", [False, True])
def test_nothing_of_a_body_that_cannot_be_read_is_in_a_span(
    collector: GrpcCollector, settings: Settings, engine: ScriptedEngine, renderer: Renderer, telling: bool
) -> None:
    word = b"KESTREL"
    good = json.dumps(body(messages=[{"role": "user", "content": word.decode()}])).encode()
    form = b'--x\r\nContent-Disposition: form-data; name="messages"\r\n\r\n' + word + b"\r\n--x--\r\n"
    unreadable = [
        (good.replace(word, word + b"\xff"), "application/json"),
        (good.decode().encode("utf-16"), "application/json"),
        (good.replace(word, word + b"\\ud800"), "application/json"),
        (good.replace(b'"max_tokens"', b'"' + word + b'\\udfff"'), "application/json"),
        (good[:-1], "application/json"),
        (b"\xff\xfe\x80\x81" + word, "application/json"),
        (form, "multipart/form-data; boundary=x"),
    ]
    changed = settings.model_copy(update={"trace_content": telling})
    with running(changed, engine, renderer) as server, server.client() as client:
        for content, media_type in unreadable:
            answer = client.post(CHAT, content=content, headers={"content-type": media_type})
            assert answer.status_code in (400, 415) and word not in answer.content
        spans = collector.wait_for(len(unreadable))
        assert {span.name for span in spans} == {f"POST {CHAT}"} and len(spans) == len(unreadable)
        for shape in (word, word.decode().encode("utf-16-le"), word.hex().encode()):
            assert not any(shape in span.SerializeToString() for span in spans)
        client.post(CHAT, content=good, headers={"content-type": "application/json"})
        all_spans = collector.wait_for(len(unreadable) + 7)
        assert any(word in span.SerializeToString() for span in all_spans) == telling


@pytest.mark.parametrize("stream", [False, True])
def test_all_that_surrounds_a_request_hides_no_leaving_and_holds_back_no_delta(
    collector: GrpcCollector,
    settings: Settings,
    engine: ScriptedEngine,
    renderer: Renderer,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    engine.script("first ", 30.0, "never")
    with surrounded(settings, engine, renderer) as server:
        with connect(server) as wire:
            wire.sendall(from_a_page(stream=stream, max_tokens=50))
            until(lambda: len(engine.started) == 1)
            if stream:
                received = b""
                while b"first " not in received:
                    received += wire.recv(65_536)
                assert f"access-control-allow-origin: {PAGE}".encode() in received
        until(lambda: len(engine.aborted) == 1, within_s=2)
        until(lambda: server.life.in_flight == 0)
        until(lambda: f"POST {CHAT}" in {span.name for span in collector.spans})
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_all_that_surrounds_a_stream_leaves_a_bound_to_who_does_not_read(
    collector: GrpcCollector, settings: Settings, engine: ScriptedEngine, renderer: Renderer
) -> None:
    engine.script(*["x" * 9000] * 900, 60.0, "never")
    with (
        surrounded(settings, engine, renderer) as server,
        connect(server, receive_bytes=65_536) as wire,
    ):
        wire.sendall(from_a_page(stream=True, max_tokens=950))
        until(lambda: len(engine.aborted) == 1, within_s=settings.write_timeout_s + 5)
        until(lambda: server.life.in_flight == 0)


def test_the_last_spans_are_sent_before_the_service_ends(
    server: Running, client: httpx.Client, collector: GrpcCollector
) -> None:
    client.post(CHAT, json=body())
    server.server.should_exit = True
    server.thread.join(20)
    assert len(collector.spans) == 7
