"""Metrics: every family that is promised, in a form that Prometheus reads, with numbers that follow what happens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg

from integration.queen import Queen, parked
from integration.test_statistics import get, refresh
from queenmq.server import Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
SAMPLE = re.compile(r'(?P<name>[a-z_0-9]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\})? (?P<value>[-+.0-9e]+)')
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
            assert match["name"] == list(kinds)[-1], "samples stand below their family"
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
    _, kinds = await scrape(queen)
    assert [name for name in PROMISED if name not in kinds] == []
    listed = set(re.findall(r"`(queen_[a-z_]+)`", DOCUMENT.read_text()))
    assert kinds.keys() - listed == set()
    await queen.push("orders", 4)
    await poll


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
