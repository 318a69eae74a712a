"""Spans of the client, with OpenTelemetry's instrumentation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from queenmq.client import Message, Queen


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What is traced between the fixture's beginning and end, as `opentelemetry-instrument` switches it on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    [found] = entry_points(group="opentelemetry_instrumentor", name="queenmq")
    instrumentor = found.load()()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def consume(queen: Queen, count: int, batch: int, *, fails: bool = False) -> None:
    async def handle(given: Message | list[Message]) -> None:
        if fails:
            raise ValueError("no such customer")

    async with asyncio.timeout(30):
        await queen.queue("orders").batch(batch).limit(count).consume(handle)  # type: ignore[arg-type]


async def test_a_handler_is_a_child_of_its_push(queen: Queen, spans: InMemorySpanExporter) -> None:
    await queen.queue("orders").push({"order": 1})
    await consume(queen, 1, 1)
    [sent], [processed] = named(spans, "send orders"), named(spans, "process orders")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.context is not None
    assert processed.parent is not None
    assert processed.parent.trace_id == sent.context.trace_id
    assert sent.attributes is not None
    assert dict(sent.attributes) == {
        "messaging.system": "queen",
        "messaging.operation.name": "send",
        "messaging.batch.message_count": 1,
        "messaging.destination.name": "orders",
    }


async def test_a_batch_has_links(queen: Queen, spans: InMemorySpanExporter) -> None:
    await queen.queue("orders").push([1, 2, 3])
    await consume(queen, 3, 3)
    [processed] = named(spans, "process orders")
    assert len(processed.links) == 3


async def test_a_handler_that_fails(queen: Queen, spans: InMemorySpanExporter) -> None:
    await queen.queue("orders").push(1)
    await consume(queen, 1, 1, fails=True)
    [processed] = named(spans, "process orders")
    assert not processed.status.is_ok
    assert [event.name for event in processed.events] == ["exception"]


async def test_without_it_there_are_no_spans(queen: Queen, spans: InMemorySpanExporter) -> None:
    [found] = entry_points(group="opentelemetry_instrumentor", name="queenmq")
    found.load()().uninstrument()
    await queen.queue("orders").push(1)
    await consume(queen, 1, 1)
    assert spans.get_finished_spans() == ()
    found.load()().instrument()
