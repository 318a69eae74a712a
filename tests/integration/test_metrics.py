"""Metrics: every family that is promised, in a form that Prometheus reads, with numbers that follow what happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.proxy import Proxy, relayed
from integration.queen import Queen, decide_pushes, parked, until
from integration.test_statistics import get, refresh
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.server import Server

LISTED = set(re.findall(r"`(queen_[a-z_]+)`", (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()))
SAMPLE = re.compile(r'(?P<name>[a-z_0-9]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\})? (?P<value>[-+.0-9e]+)')
HISTOGRAM = ("_bucket", "_sum", "_count")
PROMISED = [
    "queen_uptime_seconds",
    "queen_cpu_user_microseconds_total",
    "queen_cpu_system_microseconds_total",
    "queen_process_resident_memory_bytes",
    "queen_process_virtual_memory_bytes",
    "queen_db_pool_size",
    "queen_db_pool_idle",
    "queen_db_pool_active",
    "queen_threadpool_size",
    "queen_threadpool_queue_size",
    "queen_response_registry_size",
    "queen_file_buffer_pending",
    "queen_file_buffer_failed",
    "queen_file_buffer_db_healthy",
    "queen_maintenance_mode_enabled",
    "queen_sidecar_op_count",
    "queen_sidecar_op_latency_microseconds",
    "queen_sidecar_op_items",
    "queen_queue_backoff_groups",
    "queen_queue_backoff_queues",
    "queen_queue_backoff_avg_interval_milliseconds",
    "queen_shared_state_enabled",
    "queen_qc_cache_size",
    "queen_qc_cache_hits_total",
    "queen_qc_cache_misses_total",
    "queen_servers",
    "queen_transport_messages_total",
    "queen_cluster_push_requests_total",
    "queen_cluster_pop_requests_total",
    "queen_cluster_ack_requests_total",
    "queen_cluster_push_messages_total",
    "queen_cluster_pop_messages_total",
    "queen_cluster_ack_messages_total",
    "queen_cluster_transactions_total",
    "queen_cluster_ack_total",
    "queen_cluster_db_errors_total",
    "queen_cluster_dlq_total",
    "queen_queue_pop_messages_per_minute",
    "queen_queue_pop_lag_milliseconds",
    "queen_queue_push_requests_per_minute",
    "queen_queue_push_messages_per_minute",
    "queen_queue_pop_empty_per_minute",
    "queen_queue_ack_per_minute",
    "queen_queue_transactions_per_minute",
    "queen_queue_parked_consumers",
    "queen_queue_metrics_age_seconds",
    "queen_worker_push_messages_total",
    "queen_pop_wake_up_seconds",
    "queen_sidecar_call_requests",
    "queen_lease_hints_checked_total",
    "queen_journal_enabled",
    "queen_operations",
    "queen_operations_drain_rate",
    "queen_operations_oldest_age_seconds",
    "queen_operations_retrying",
    "queen_load_decisions_total",
    "queen_push_refused_total",
    "queen_forwards_total",
    "queen_circuits",
    "queen_dlq_depth",
    "queen_dlq_depth_by_queue",
]


async def scrape(queen: Queen) -> tuple[dict[str, float], dict[str, str]]:
    """The samples by name and labels, and the kind of each family."""
    answer = await queen.http.get("/metrics/prometheus")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    samples, kinds, described = {}, {}, set()
    for line in answer.text.splitlines():
        if line.startswith("# HELP "):
            described.add(line.split()[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds, f"{name} is told in two places"
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = list(kinds)[-1]
            parts = {family + part for part in HISTOGRAM} if kinds[family] == "histogram" else {family}
            assert match["name"] in parts, "samples stand below their family"
            samples[line.rpartition(" ")[0]] = float(match["value"])
    assert described == kinds.keys()
    assert answer.text.endswith("\n")
    return samples, kinds


async def a_minute_of_work(queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, 3)
    messages = await queen.pop("orders", batch=3)
    await queen.ack_batch(messages, "completed", "completed", "dlq")
    await queen.pop("orders")
    await refresh(queen)
    await sql.execute("UPDATE queen.activity SET bucket = bucket - interval '1 minute' WHERE bucket > '-infinity'")


async def test_every_family_is_there_and_documented(queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    await a_minute_of_work(queen, server, sql)
    poll = asyncio.create_task(queen.wait("orders", timeout=5000))
    await parked(server)
    await queen.push("orders", 4)
    await poll
    poll = asyncio.create_task(queen.wait("other", timeout=5000))
    await parked(server)
    _, kinds = await scrape(queen)
    await queen.push("other", 5)
    await poll
    assert [name for name in PROMISED if name not in kinds] == []
    assert kinds.keys() - LISTED == set()


async def test_the_numbers_follow_what_happens(queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    await a_minute_of_work(queen, server, sql)
    samples, kinds = await scrape(queen)
    assert samples['queen_cluster_push_messages_total{scope="cluster"}'] == 3
    assert samples['queen_cluster_ack_total{result="success",scope="cluster"}'] == 3
    assert samples['queen_cluster_dlq_total{scope="cluster"}'] == 1
    assert samples['queen_queue_push_messages_per_minute{queue="orders"}'] == 3
    assert samples['queen_queue_pop_empty_per_minute{queue="orders"}'] == 1
    assert samples['queen_queue_ack_per_minute{queue="orders",result="success"}'] == 3
    assert samples['queen_queue_pop_lag_milliseconds{queue="orders",stat="max"}'] >= 0
    assert samples['queen_dlq_depth{scope="cluster"}'] == samples['queen_dlq_depth_by_queue{queue="orders"}'] == 1
    assert samples['queen_messages{state="completed"}'] == 3
    assert samples['queen_sidecar_op_items{op="push"}'] == 3
    assert samples['queen_sidecar_merge_size{op="push"}'] == 1
    [worker] = [value for name, value in samples.items() if name.startswith("queen_worker_push_messages_total{")]
    assert worker == 3
    for name, kind in kinds.items():
        if name.endswith("_total"):
            assert kind == "counter", name
    before = samples['queen_cluster_push_messages_total{scope="cluster"}']
    await queen.push("orders", 4)
    await refresh(queen)
    samples, _ = await scrape(queen)
    assert samples['queen_cluster_push_messages_total{scope="cluster"}'] == before + 1


class TestWithoutASafetyNet:
    @pytest.fixture
    def settings(self) -> Settings:
        """Only the push can end a long poll."""
        return settings_with(pop={"wait_initial_interval_ms": 60_000, "wait_max_interval_ms": 60_000})

    async def test_a_wake_up_is_measured(self, queen: Queen, server: Server) -> None:
        poll = asyncio.create_task(queen.wait("orders"))
        await parked(server)
        assert (await scrape(queen))[0]["queen_pop_wake_up_seconds_count"] == 0
        await queen.push("orders", 1)
        assert await poll
        samples, _ = await scrape(queen)
        assert samples["queen_pop_wake_up_seconds_count"] == 1
        assert samples['queen_pop_wake_up_seconds_bucket{le="+Inf"}'] == 1
        assert 0 < samples["queen_pop_wake_up_seconds_sum"] < 60
        assert samples['queen_sidecar_call_requests_bucket{op="push",le="1"}'] == 1


async def test_operations_and_decisions_are_counted(queen: Queen, server: Server, monkeypatch: Any) -> None:
    runner, run = server.broker.operation_runner, server.broker.operation_runner.run_pushes
    monkeypatch.setattr(runner, "run_pushes", _never)
    decide_pushes(server, monkeypatch, Choice.QUEUE)
    items = [{"queue": "orders", "payload": number} for number in range(2)]
    assert (await queen.http.post("/api/v1/push", json={"items": items})).status_code == 202
    samples, kinds = await scrape(queen)
    assert kinds.keys() - LISTED == set()
    assert samples['queen_operations{state="pending"}'] == 1
    assert samples['queen_push_deferred_total{reason="system_busy"}'] == 2
    assert samples["queen_operations_oldest_age_seconds"] > 0
    assert samples['queen_operations_run_total{result="completed"}'] == 0

    async def has_run() -> bool:
        """The worker gives back what is claimed when it starts, which may be only now."""
        await run(10, 10)
        return runner.pushes.finished["completed"] == 1

    await until(has_run)
    monkeypatch.undo()
    await queen.push("orders", 3)
    samples, _ = await scrape(queen)
    assert samples['queen_operations{state="pending"}'] == 0
    assert samples['queen_operations_run_total{result="completed"}'] == 1
    assert samples['queen_load_decisions_total{operation="push",decision="execute"}'] == 1


async def _never(*_: int) -> int:
    return 0


class TestWithoutADatabase:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_with(
            journal={"folder": tmp_path, "replay_interval_ms": 10},
            database={"ping_ms": 50, "connection_timeout_ms": 30_000},
        )

    @pytest.fixture
    async def proxy(self, database_url: str) -> AsyncIterator[Proxy]:
        async with relayed(database_url) as running:
            yield running

    @pytest.fixture
    async def server(self, proxy: Proxy, settings: Settings) -> AsyncIterator[Server]:
        running = Server(settings, proxy.url)
        await running.start()
        yield running
        await running.stop()

    async def test_an_outage_and_the_journal_can_be_seen(self, queen: Queen, server: Server, proxy: Proxy) -> None:
        await queen.push("orders", 1)
        await proxy.close()
        item = {"queue": "orders", "partition": "p", "payload": 2}
        assert (await queen.http.post("/api/v1/push", json={"items": [item, item]})).status_code == 202
        await until(lambda: not server.database.is_open)
        samples, kinds = await scrape(queen)
        assert kinds.keys() - LISTED == set()
        assert samples["queen_file_buffer_db_healthy"] == 0
        assert samples["queen_file_buffer_pending"] == 2
        assert samples["queen_journal_records"] == samples["queen_journal_partitions_held"] == 1
        assert 0 < samples["queen_journal_bytes"] < samples["queen_journal_max_bytes"]
        assert samples['queen_push_deferred_total{reason="database_unavailable"}'] == 2
        assert "queen_queues" not in samples
        await proxy.open()
        await until(lambda: server.broker.journal is not None and not server.broker.journal.pending, 30)  # type: ignore[attr-defined]
        samples, _ = await scrape(queen)
        assert samples["queen_file_buffer_db_healthy"] == samples["queen_queues"] == 1
        assert samples["queen_journal_replayed_messages_total"] == 2


async def test_whoever_needs_no_token_does_not_ask_the_database_again_and_again(queen: Queen, server: Server) -> None:
    scrapes, pings = server._app._context.scrapes, server.broker._administration._pings
    before = scrapes.loads, pings.loads
    answers = await asyncio.gather(
        *(queen.http.get(path) for path in ("/metrics/prometheus", "/health") for _ in range(20))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert scrapes.loads - before[0] < 10
    assert pings.loads - before[1] < 10
    assert (scrapes.shared > 0, pings.shared > 0) == (True, True)


async def test_names_of_queues_are_escaped(queen: Queen, sql: asyncpg.Connection) -> None:
    name = 'a"b\\c\nd'
    await queen.push(name, 1)
    await queen.http.post("/api/v1/stats/refresh")
    await sql.execute("UPDATE queen.activity SET bucket = bucket - interval '1 minute' WHERE bucket > '-infinity'")
    samples, _ = await scrape(queen)
    assert samples['queen_queue_push_messages_per_minute{queue="a\\"b\\\\c\\nd"}'] == 1


async def test_json_metrics_count(queen: Queen) -> None:
    await queen.push("orders", 1, 2)
    await queen.pop("orders")
    metrics = (await queen.http.get("/metrics")).json()
    assert (metrics["requests"]["total"], metrics["messages"]["total"]) == (2, 3)
    assert metrics["uptime"] > 0
    assert metrics["memory"]["rss"] > 10_000_000
    assert metrics["database"]["poolSize"] >= 1
    assert metrics["cpu"]["user"] > 0
    assert await get(queen, "status/buffers")
