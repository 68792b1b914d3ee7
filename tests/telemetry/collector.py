"""Collectors as they come: one takes spans over real gRPC, one is silent, one is not there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class GrpcCollector(TraceServiceServicer):
    """Keeps the spans it is sent, and the resource they came from."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.metadata: dict[str, str] = {}

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        """Called by the gRPC server for each batch."""
        self.metadata |= {str(key): str(value) for key, value in context.invocation_metadata()}
        for group in request.resource_spans:
            self.resources.append({item.key: item.value.string_value for item in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans += scope.spans
        return ExportTraceServiceResponse()

    def wait_for(self, count: int, within_s: float = 10) -> list[Span]:
        """The spans, once there are so many."""
        limit = time.monotonic() + within_s
        while len(self.spans) < count and time.monotonic() < limit:
            time.sleep(0.02)
        return self.spans


@contextmanager
def grpc_collector() -> Iterator[tuple[GrpcCollector, int]]:
    """A collector on a real gRPC server, and its port."""
    collector = GrpcCollector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, collector.port
    finally:
        server.stop(None).wait()


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that accepts connections, reads, and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def accept() -> None:
        try:
            while True:
                kept.append(listener.accept()[0])
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()
        thread.join(5)


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
