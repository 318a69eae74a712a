"""The trace of the program goes along with a push, and a handler works in the trace of its message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from queenmq.client import BlockingQueen, Message, Queen


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider.get_tracer("test")
    provider.shutdown()


def current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


async def test_a_handler_works_in_the_trace_of_the_push(queen: Queen, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("sell") as span:
        await queen.queue("orders").push([1])
    await queen.queue("orders").push([2])
    seen: list[tuple[Message, trace.SpanContext]] = []

    async def handle(message: Message) -> None:
        seen.append((message, current()))

    async with asyncio.timeout(30):
        await queen.queue("orders").group("g").limit(2).each().consume(handle)
    (first, inside), (second, outside) = seen
    assert inside.trace_id == span.get_span_context().trace_id
    assert first.traceparent == f"00-{inside.trace_id:032x}-{inside.span_id:016x}-01"
    assert (second.traceparent, outside.is_valid) == (None, False)
    assert not current().is_valid


async def test_the_blocking_client_knows_the_span_of_its_thread(url: str, queen: Queen, tracer: trace.Tracer) -> None:
    def push() -> int:
        with BlockingQueen(url) as blocking, tracer.start_as_current_span("sell") as span:
            blocking.queue("orders").push([1])
            return span.get_span_context().trace_id

    trace_id = await asyncio.to_thread(push)
    [message] = await queen.queue("orders").group("g").pop()
    assert message.trace_id is not None
    assert message.trace_id.replace("-", "") == f"{trace_id:032x}"


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    check = "import sys, queenmq.client; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
