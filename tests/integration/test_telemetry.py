"""OpenTelemetry: spans and metrics arrive at a real collector, and a message carries its trace from push to pop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from server_settings import settings_with

from integration.cluster import cluster
from integration.otlp import Collector, collecting
from integration.queen import Queen, another_server, parked, push_op, until
from queenmq.core.trace_context import span_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
AS_UUID = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
CALLER = "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@asynccontextmanager
async def exporting(collector: Collector, database_url: str, **telemetry: Any) -> Any:
    """A server that exports; everything has arrived when this has ended."""
    chosen = settings_with(telemetry={"endpoint": collector.url} | telemetry)
    async with another_server(chosen, database_url) as queen:
        yield queen


async def push(queen: Queen, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"items": [{"queue": "orders", "payload": 1} | fields]}
    answer = await queen.http.post("/api/v1/push", json=body, headers=headers)
    assert answer.status_code == 201
    return answer.json()[0]


def of(span: Any) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


async def test_push_and_pop_of_a_message_share_the_trace_of_the_producer(
    collector: Collector, database_url: str
) -> None:
    async with exporting(collector, database_url) as queen:
        pushed = await push(queen, SAMPLED)
        [message] = await queen.pop("orders")
        assert await queen.pop("orders") == []
        await queen.ack(message)
    [request], [made] = collector.named("POST /api/v1/push"), collector.named("create orders")
    [popped], [received] = collector.named("GET /api/v1/pop"), collector.named("receive orders")
    assert request.trace_id.hex() == made.trace_id.hex() == received.trace_id.hex() == TRACE
    assert popped.trace_id.hex() != TRACE
    assert request.parent_span_id.hex() == CALLER
    assert made.parent_span_id == request.span_id
    assert received.parent_span_id == made.span_id
    assert made.span_id.hex() == span_id_of(pushed["message_id"])
    assert [link.span_id for link in received.links] == [popped.span_id]
    assert of(received)["messaging.destination.name"] == of(made)["messaging.destination.name"] == "orders"
    assert of(received)["messaging.message.id"] == pushed["message_id"]
    assert of(request)["http.response.status_code"] == 201
    assert message["traceId"] == AS_UUID
    assert message["traceparent"] == f"00-{TRACE}-{made.span_id.hex()}-01"
    assert collector.named("POST /api/v1/ack")
    assert all(resource["service.name"] == "queen" for resource in collector.resources)


async def test_a_producer_that_knows_nothing_of_traces_begins_one(collector: Collector, database_url: str) -> None:
    async with exporting(collector, database_url) as queen:
        await push(queen)
        await queen.pop("orders")
        refused = await queen.http.post("/api/v1/push", json={})
        assert refused.status_code == 400
    [made], [received] = collector.named("create orders"), collector.named("receive orders")
    assert made.trace_id == received.trace_id
    statuses = [of(span)["http.response.status_code"] for span in collector.named("POST /api/v1/push")]
    assert sorted(statuses) == [201, 400]


async def test_what_the_producer_does_not_record_is_not_recorded(collector: Collector, database_url: str) -> None:
    async with exporting(collector, database_url) as queen:
        await push(queen, {"traceparent": f"00-{TRACE}-{CALLER}-00"})
        [message] = await queen.pop("orders")
    assert (message["traceId"], message.get("traceparent")) == (None, None)
    assert [span for span in collector.spans if span.trace_id.hex() == TRACE] == []


async def test_metrics_arrive(collector: Collector, database_url: str) -> None:
    async with exporting(collector, database_url, metric_interval_ms=200) as queen:
        await push(queen)

        def told() -> bool:
            metric = collector.metrics.get("queen_worker_push_messages_total")
            return metric is not None and metric.sum.data_points[0].as_int == 1

        await until(told, 30)
    assert collector.metrics["queen_db_pool_size"].gauge.data_points[0].as_int >= 1
    sidecar = collector.metrics["queen_sidecar_op_count"].sum.data_points
    labels = {point.attributes[0].value.string_value for point in sidecar}
    assert {"push", "pop", "ack"} <= labels
    assert "queen_pop_wake_up_seconds_count" in collector.metrics
    assert "queen_operations" in collector.metrics


async def test_a_collector_that_is_away_disturbs_nobody(database_url: str) -> None:
    settings = settings_with(telemetry={"endpoint": "http://127.0.0.1:9", "metric_interval_ms": 100})
    async with another_server(settings, database_url) as queen:
        assert (await push(queen))["status"] == "queued"
        [message] = await queen.pop("orders")
        assert message["traceparent"].startswith("00-")


class TestWithoutACollector:
    """The context is carried all the same; nothing is made or sent."""

    async def test_the_trace_of_the_request_is_carried(self, queen: Queen) -> None:
        pushed = await push(queen, SAMPLED)
        assert pushed["trace_id"] == AS_UUID
        [message] = await queen.pop("orders")
        assert message["traceparent"] == f"00-{TRACE}-{span_id_of(message['id'])}-01"

    async def test_a_transaction_carries_it_too(self, queen: Queen) -> None:
        body = {"operations": [push_op("orders", 1)]}
        answer = await queen.http.post("/api/v1/transaction", json=body, headers=SAMPLED)
        assert answer.json()["success"]
        assert (await queen.pop("orders"))[0]["traceId"] == AS_UUID

    async def test_a_trace_id_of_the_item_goes_first(self, queen: Queen) -> None:
        other = "0190a0b0-0000-7000-8000-000000000001"
        await push(queen, SAMPLED, traceId=other)
        assert (await queen.pop("orders"))[0]["traceId"] == other

    @pytest.mark.parametrize(
        "header",
        ["", "00", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", f"00-{TRACE}-{CALLER}-01-x", "x" * 55],
    )
    async def test_what_is_no_context_is_ignored(self, http: httpx.AsyncClient, queen: Queen, header: str) -> None:
        await push(queen, {"traceparent": header})
        [message] = await queen.pop("orders")
        assert (message["traceId"], message.get("traceparent")) == (None, None)


def test_the_sdk_is_not_loaded_unless_it_is_used() -> None:
    check = "import sys, queenmq.server; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


async def test_without_the_packages_a_sentence_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "queenmq.http.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    settings = settings_with(telemetry={"endpoint": "http://127.0.0.1:9"})
    async with another_server(settings, database_url) as queen:
        assert (await push(queen))["status"] == "queued"
    assert "pip install 'queenmq[otel]'" in caplog.text


async def test_what_is_passed_on_is_told_once_in_one_trace(collector: Collector, database_url: str) -> None:
    async with cluster(database_url, "ab", telemetry={"endpoint": collector.url}) as [a, b]:
        a.send_consumers(("orders", "__QUEUE_MODE__"), b)
        poll = asyncio.create_task(a.pop("orders", wait=True, timeout=30_000))
        await parked(b.server)
        await until(lambda: a.coordinator.producer_route("orders", a.server.node.now) is not None)
        pushed = await a.http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 1}]}, headers=SAMPLED)
        assert pushed.headers["X-Served-By"] == "b"
        [message] = (await poll).json()["messages"]
        scraped = (await a.http.get("/metrics/prometheus")).text
    assert 'queen_forwards_total{outcome="served"} 2' in scraped
    assert 'queen_circuits{state="closed"} 1' in scraped
    [made], [received] = collector.named("create orders"), collector.named("receive orders")
    there, here = sorted(collector.named("POST /api/v1/push"), key=lambda span: span.parent_span_id.hex() == CALLER)
    assert here.parent_span_id.hex() == CALLER
    assert (there.parent_span_id, made.parent_span_id) == (here.span_id, there.span_id)
    assert made.span_id.hex() == span_id_of(message["id"])
    assert received.parent_span_id == made.span_id
    assert len(collector.named("GET /api/v1/pop")) == 1
