"""Histories of servers and queues: sampled, stored and told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from integration.queen import Queen, age_messages, parked
from integration.test_statistics import get, refresh
from queenmq.clock import ManualClock
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.services.retention import Eviction, Retention
from queenmq.services.sampler import Sampler


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def sampler(server: Server, settings: Settings, clock: ManualClock) -> Sampler:
    statistics = replace(settings.statistics, aggregate_interval_s=60)
    return Sampler(server.broker, statistics, clock, port=6632, worker_id="worker-1", slots=10)


async def test_how_a_server_was_is_sampled_and_told(queen: Queen, sampler: Sampler) -> None:
    await queen.push("orders", 1)
    for _ in range(3):
        await sampler.work()
    await sampler.store()
    metrics = await get(queen, "analytics/system-metrics")
    [replica] = metrics["replicas"]
    assert (metrics["replicaCount"], metrics["pointCount"], replica["workerId"]) == (1, 1, "worker-1")
    [point] = replica["timeSeries"]
    assert point["sampleCount"] == 3
    memory = point["metrics"]["memory"]["rss_bytes"]
    assert memory.keys() == {"avg", "min", "max", "last"}
    assert memory["min"] <= memory["avg"] <= memory["max"]
    assert point["metrics"]["database"]["pool_size"]["last"] >= 1
    assert point["metrics"]["threadpool"].keys() == {"db", "system"}
    assert (await get(queen, "analytics/system-metrics", hostname="elsewhere"))["replicas"] == []
    assert (await get(queen, "analytics/system-metrics", workerId="worker-1"))["replicaCount"] == 1


async def test_a_sampler_stores_by_itself_when_its_time_has_come(
    queen: Queen, sampler: Sampler, clock: ManualClock
) -> None:
    await sampler.work()
    clock.advance(59.9)
    await sampler.work()
    assert (await get(queen, "analytics/system-metrics"))["pointCount"] == 0
    clock.advance(0.1)
    await sampler.work()
    assert (await get(queen, "analytics/system-metrics"))["pointCount"] == 1


async def test_what_the_servers_did_is_told_with_how_they_were(queen: Queen, sampler: Sampler) -> None:
    await queen.push("orders", 1, 2)
    await queen.ack_batch(await queen.pop("orders", batch=2), "completed", "dlq")
    await sampler.work()
    await sampler.store()
    await refresh(queen)
    told = await get(queen, "analytics/worker-metrics")
    summary = told["summary"]
    assert {
        name: summary[name] for name in ("totalPushMessages", "totalPopMessages", "totalAckMessages", "totalDlq")
    } == {
        "totalPushMessages": 2,
        "totalPopMessages": 2,
        "totalAckMessages": 2,
        "totalDlq": 1,
    }
    assert sum(point["dbConnections"] for point in told["timeSeries"]) >= 1
    [worker] = told["workers"]
    assert (worker["workerId"], worker["dbConnections"] >= 1) == ("worker-1", True)
    status = await get(queen, "status")
    assert [(w["workerId"], w["messagesProcessed"]) for w in status["workers"]] == [("worker-1", 2)]
    assert sum(point["queenRssMb"] for point in status["throughput"]) > 10


async def test_operations_are_told_by_queue(queen: Queen, server: Server) -> None:
    await queen.push("orders", 1, 2)
    await queen.pop("orders")
    await queen.push("bills", 3)
    poll = asyncio.create_task(queen.wait("bills", "nobody", timeout=5000))
    await parked(server)
    await refresh(queen)
    told = await get(queen, "analytics/queue-ops")
    assert told["queues"] == ["bills", "orders"]
    by_queue = {point["queueName"]: point for point in told["series"]}
    assert (by_queue["orders"]["pushMessages"], by_queue["orders"]["popMessages"]) == (2, 1)
    assert (by_queue["bills"]["parkedCount"], by_queue["bills"]["partitionCount"]) == (1, 1)
    assert (await get(queen, "analytics/queue-ops", queue="bills"))["queues"] == ["bills"]
    held = await get(queen, "analytics/queue-parked-replicas")
    assert [(point["queueName"], point["parkedCount"]) for point in held["series"]] == [("bills", 1)]
    assert len(held["replicas"]) == 1
    await queen.push("bills", 4, partition="nobody")
    await poll


async def test_the_lag_of_the_last_minute_is_told(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2)
    await age_messages(sql, "orders", 100)
    await queen.pop("orders", batch=2)
    await refresh(queen)
    assert await get(queen, "analytics/queue-lag") == []
    await sql.execute("UPDATE queen.activity SET bucket = bucket - interval '1 minute' WHERE bucket > '-infinity'")
    [lag] = await get(queen, "analytics/queue-lag")
    assert (lag["queueName"], lag["popCount"]) == ("orders", 2)
    assert 100_000 <= lag["avgLagMs"] <= lag["maxLagMs"] < 120_000


async def test_what_was_deleted_is_told(
    queen: Queen, server: Server, settings: Settings, sql: asyncpg.Connection
) -> None:
    await queen.configure("old", retentionEnabled=True, retentionSeconds=10)
    await queen.configure("late", maxWaitTimeSeconds=10)
    await queen.push("old", 1, 2)
    await queen.push("late", 3)
    for queue in ("old", "late"):
        await age_messages(sql, queue, 100)
    await Retention(server.broker.operation_runner, settings.retention).work()
    await Eviction(server.database, server.broker.activity, settings.retention).work()
    await refresh(queen)
    totals = (await get(queen, "analytics/retention"))["totals"]
    assert (totals["retentionMsgs"], totals["evictionMsgs"], totals["totalMsgs"]) == (2, 1, 3)


async def test_postgres_is_told_about(queen: Queen) -> None:
    await queen.push("orders", 1)
    stats = await get(queen, "analytics/postgres-stats")
    assert stats.keys() == {
        *("timestamp", "database", "databaseCache", "tableCache", "indexCache", "cacheSummary", "deadTuples"),
        *("hotUpdates", "activeQueries", "autovacuumStatus", "bufferConfig", "bufferUsage", "tableSizes"),
    }
    assert {"messages", "partition_lookup"} <= {table["table"] for table in stats["tableSizes"]}
    assert stats["database"]["connections"] >= 1
    assert "shared_buffers" in stats["bufferConfig"]


async def test_statements_of_other_applications_are_not_shown(queen: Queen, database_url: str) -> None:
    other = await asyncpg.connect(database_url, server_settings={"application_name": "payroll"})
    try:
        async with other.transaction():
            await other.execute("SELECT 'salary of the director'")
            shown = (await get(queen, "analytics/postgres-stats"))["activeQueries"]
    finally:
        await other.close()
    assert "salary" not in str(shown)
    assert [session["query"] for session in shown if session["application"] == "payroll"] == [""]
