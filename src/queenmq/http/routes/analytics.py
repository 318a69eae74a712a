"""Histories of servers and queues, and what PostgreSQL says: GET /api/v1/analytics/*"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from queenmq.core.names import iso_millis
from queenmq.engine.engine import Engine
from queenmq.http.decoding import query_name
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.time_range import PARAMETERS as RANGE
from queenmq.http.time_range import TimeRange, query_range

Json = dict[str, Any]

_MOST_QUEUES = 20
_MOST_LISTED = 100
_MOST_SESSIONS = 50
_MEGABYTE = 1024 * 1024
_QUEUE = Parameter("queue", LABEL, f"Only this queue; else the {_MOST_QUEUES} that saw most at the end of the range.")
_HOST = Parameter("hostname", LABEL, "Only servers of this host.")
_WORKER = Parameter("workerId", LABEL, "Only servers with this WORKER_ID.")


def add_routes(router: Router, engine: Engine) -> None:
    reports = engine.reports

    async def samples(span: TimeRange, host: str | None = None, worker: str | None = None) -> list[asyncpg.Record]:
        return await reports.rows("sample_series", span.since, span.until, span.bucket_minutes, host, worker)

    @documented({200: Json}, query=[*RANGE, _HOST, _WORKER])
    async def system_metrics(request: Request) -> Response:
        """Processor, memory, connections and queues of each server over time; the last hour by default."""
        span = query_range(request, 1)
        rows = await samples(span, query_name(request, "hostname"), query_name(request, "workerId"))
        replicas: dict[str, Json] = {}
        for row in rows:
            replica = replicas.setdefault(row["server"], _server(row) | {"timeSeries": []})
            figures = msgspec.json.decode(row["figures"])
            point = {"timestamp": iso_millis(row["bucket"]), "sampleCount": row["samples"], "metrics": figures}
            replica["timeSeries"].append(point)
        body = {
            "timeRange": span.shown(),
            "replicas": list(replicas.values()),
            "replicaCount": len(replicas),
            "bucketMinutes": span.bucket_minutes,
            "pointCount": len(rows),
        }
        return json_response(200, body)

    @documented({200: Json}, query=RANGE)
    async def worker_metrics(request: Request) -> Response:
        """What all servers did over time, and how they were; the last hour by default."""
        span = query_range(request, 1)
        series = await reports.rows("activity_series", span.since, span.until, span.bucket_minutes, None, None, None)
        rows = await samples(span)
        states = states_by_bucket(rows)
        last = {row["server"]: row for row in rows}
        backlog = await reports.one("overview", None, None, None)
        body = {
            "timeRange": span.shown(),
            "bucketMinutes": span.bucket_minutes,
            "pointCount": len(series),
            "timeSeries": [_work(row, span.bucket_minutes) | states.get(row["bucket"], state_of([])) for row in series],
            "workers": [worker(row) for row in last.values()],
            "queues": [_lag(row) for row in await reports.rows("activity_last_minute", _MOST_LISTED)],
            "summary": _summary(series) | {"pendingMessages": backlog["pending"]},
        }
        return json_response(200, body)

    @documented({200: list[Json]})
    async def queue_lag(_: Request) -> Response:
        """How old messages were when they were delivered, by queue, in the last whole minute."""
        rows = await reports.rows("activity_last_minute", min(_MOST_LISTED, engine.settings.max_items))
        return json_response(200, [_lag(row) | {"bucketTime": iso_millis(row["bucket"])} for row in rows])

    @documented({200: Json}, query=[*RANGE, _QUEUE])
    async def queue_ops(request: Request) -> Response:
        """What was done to each queue over time; the last hour by default."""
        span = query_range(request, 1)
        rows = await reports.rows(
            "queue_activity", span.since, span.until, span.bucket_minutes, query_name(request, "queue"), _MOST_QUEUES
        )
        body = _told(span, [_operations(row, span.bucket_minutes * 60) for row in rows])
        return json_response(200, body | {"queues": sorted({row["queue_name"] for row in rows})})

    @documented({200: Json}, query=[*RANGE, _QUEUE])
    async def queue_parked_replicas(request: Request) -> Response:
        """How many long polls each server held for each queue over time; the last hour by default."""
        span = query_range(request, 1)
        rows = await reports.rows(
            "parked_activity", span.since, span.until, span.bucket_minutes, query_name(request, "queue"), _MOST_QUEUES
        )
        known = {row["server"]: row for row in await samples(span)}
        replicas = {row["server"]: _replica(row["server"], known) for row in rows}
        series = [
            {
                "bucket": iso_millis(row["bucket"]),
                "queueName": row["queue_name"],
                **replicas[row["server"]],
                "parkedCount": row["parked"],
            }
            for row in rows
        ]
        return json_response(200, _told(span, series) | {"replicas": list(replicas.values())})

    @documented({200: Json}, query=RANGE)
    async def retention(request: Request) -> Response:
        """What retention and eviction deleted over time; the last hour by default."""
        span = query_range(request, 1)
        rows = await reports.rows("activity_series", span.since, span.until, span.bucket_minutes, None, None, None)
        series = [{"bucket": iso_millis(row["bucket"]), **_deleted([row])} for row in rows]
        return json_response(200, _told(span, series) | {"totals": _deleted(rows)})

    @documented({200: Json})
    async def postgres_stats(_: Request) -> Response:
        """What PostgreSQL says about this database and the tables of Queen."""
        database = await reports.one("postgres_database")
        tables = [dict(row) for row in await reports.rows("postgres_tables")]
        sessions = [_shown(row) for row in await reports.rows("postgres_activity", _MOST_SESSIONS)]
        settings = {row["name"]: _with_unit(row) for row in await reports.rows("postgres_settings")}
        now = await reports.one("now")
        return json_response(200, _postgres(now[0], database, tables, sessions, settings))

    base = "/api/v1/analytics/"
    router.add("GET", base + "system-metrics", system_metrics, Role.READ_ONLY)
    router.add("GET", base + "worker-metrics", worker_metrics, Role.READ_ONLY)
    router.add("GET", base + "queue-lag", queue_lag, Role.READ_ONLY)
    router.add("GET", base + "queue-ops", queue_ops, Role.READ_ONLY)
    router.add("GET", base + "queue-parked-replicas", queue_parked_replicas, Role.READ_ONLY)
    router.add("GET", base + "retention", retention, Role.READ_ONLY)
    router.add("GET", base + "postgres-stats", postgres_stats, Role.READ_ONLY)


def _told(span: TimeRange, series: list[Json]) -> Json:
    return {"timeRange": span.shown(), "bucketMinutes": span.bucket_minutes, "series": series}


def _server(row: asyncpg.Record) -> Json:
    return {"hostname": row["hostname"], "port": row["port"], "workerId": row["worker_id"]}


def _replica(server: str, known: dict[str, asyncpg.Record]) -> Json:
    """A server that has not stored a sample yet goes by its id."""
    row = known.get(server)
    return (
        {"hostname": server, "workerId": ""} if row is None else {k: _server(row)[k] for k in ("hostname", "workerId")}
    )


def worker(row: asyncpg.Record) -> Json:
    """How a server was at last."""
    figures = msgspec.json.decode(row["figures"])
    return _server(row) | {
        "avgEventLoopLagMs": figures["event_loop"]["lag_ms"]["avg"],
        "maxEventLoopLagMs": figures["event_loop"]["lag_ms"]["max"],
        "freeSlots": figures["event_loop"]["free_slots"]["last"],
        "dbConnections": figures["database"]["pool_size"]["last"],
        "jobQueueSize": figures["threadpool"]["db"]["queue_size"]["last"],
        "backoffSize": figures["backoff"]["groups"]["last"],
        "lastSeen": iso_millis(row["at"]),
    }


def states_by_bucket(rows: list[asyncpg.Record]) -> dict[datetime, Json]:
    """How the servers together were, by bucket."""
    gathered: dict[datetime, list[Json]] = {}
    for row in rows:
        gathered.setdefault(row["bucket"], []).append(msgspec.json.decode(row["figures"]))
    return {bucket: state_of(figures) for bucket, figures in gathered.items()}


def state_of(figures: list[Json]) -> Json:
    lag = [f["event_loop"]["lag_ms"] for f in figures]
    slots = [f["event_loop"]["free_slots"] for f in figures]
    queued = [f["threadpool"]["db"]["queue_size"] for f in figures]
    return {
        "avgEventLoopLagMs": _mean(f["avg"] for f in lag),
        "maxEventLoopLagMs": max((f["max"] for f in lag), default=0),
        "avgFreeSlots": _mean(f["avg"] for f in slots),
        "minFreeSlots": min((f["min"] for f in slots), default=0),
        "dbConnections": sum(f["database"]["pool_size"]["last"] for f in figures),
        "avgJobQueueSize": _mean(f["avg"] for f in queued),
        "maxJobQueueSize": max((f["max"] for f in queued), default=0),
        "backoffSize": sum(f["backoff"]["groups"]["last"] for f in figures),
        "queenCpuUserPct": sum(_percent(f, "user_us") for f in figures),
        "queenCpuSysPct": sum(_percent(f, "system_us") for f in figures),
        "queenRssMb": sum(f["memory"]["rss_bytes"]["last"] for f in figures) / _MEGABYTE,
        "dbPoolActive": sum(f["database"]["pool_active"]["last"] for f in figures),
        "dbPoolIdle": sum(f["database"]["pool_idle"]["last"] for f in figures),
        "dbPoolSize": sum(f["database"]["pool_size"]["last"] for f in figures),
    }


def _percent(figures: Json, name: str) -> float:
    """Of one processor."""
    microseconds: float = figures["cpu"][name]["avg"]
    interval: float = figures["cpu"]["interval_us"]["avg"]
    return microseconds / interval * 100


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _average_lag(row: asyncpg.Record) -> float:
    average: float = row["lag_sum_ms"] / row["lag_count"] if row["lag_count"] else 0.0
    return average


def _work(row: asyncpg.Record, minutes: int) -> Json:
    seconds = minutes * 60
    return {
        "timestamp": iso_millis(row["bucket"]),
        "pushMessages": row["push_messages"],
        "popMessages": row["pop_messages"],
        "ackMessages": row["ack_success"],
        "pushRequests": row["push_requests"],
        "popRequests": row["pop_requests"],
        "ackRequests": row["ack_requests"],
        "jobsDone": row["push_requests"] + row["pop_requests"] + row["ack_requests"],
        "pushPerSecond": row["push_messages"] / seconds,
        "popPerSecond": row["pop_messages"] / seconds,
        "ackPerSecond": row["ack_success"] / seconds,
        "avgLagMs": _average_lag(row),
        "maxLagMs": row["lag_max_ms"],
        "lagCount": row["lag_count"],
        "dbErrors": row["db_errors"],
        "ackSuccess": row["ack_success"],
        "ackFailed": row["ack_failed"],
        "dlqCount": row["dead_lettered"],
    }


def _summary(rows: list[asyncpg.Record]) -> Json:
    return {
        "totalPushMessages": sum(row["push_messages"] for row in rows),
        "totalPopMessages": sum(row["pop_messages"] for row in rows),
        "totalAckMessages": sum(row["ack_success"] for row in rows),
        "totalPushRequests": sum(row["push_requests"] for row in rows),
        "totalPopRequests": sum(row["pop_requests"] for row in rows),
        "totalAckRequests": sum(row["ack_requests"] for row in rows),
        "totalDbErrors": sum(row["db_errors"] for row in rows),
        "totalAckFailed": sum(row["ack_failed"] for row in rows),
        "totalDlq": sum(row["dead_lettered"] for row in rows),
    }


def _lag(row: asyncpg.Record) -> Json:
    return {
        "queueName": row["queue_name"],
        "popCount": row["pop_messages"],
        "avgLagMs": _average_lag(row),
        "maxLagMs": row["lag_max_ms"],
    }


def _operations(row: asyncpg.Record, seconds: int) -> Json:
    return {
        "bucket": iso_millis(row["bucket"]),
        "queueName": row["queue_name"],
        "pushRequests": row["push_requests"],
        "pushMessages": row["push_messages"],
        "popMessages": row["pop_messages"],
        "popEmpty": row["pop_empty"],
        "ackRequests": row["ack_requests"],
        "ackSuccess": row["ack_success"],
        "ackFailed": row["ack_failed"],
        "transactions": row["transactions"],
        "partitionsCreated": None,
        "partitionsDeleted": None,
        "partitionCount": row["partitions"],
        "avgLagMs": _average_lag(row),
        "maxLagMs": row["lag_max_ms"],
        "pushPerSecond": row["push_messages"] / seconds,
        "popPerSecond": row["pop_messages"] / seconds,
        "ackPerSecond": row["ack_success"] / seconds,
        "emptyPerSecond": row["pop_empty"] / seconds,
        "parkedCount": row["parked"],
    }


def _deleted(rows: list[asyncpg.Record]) -> Json:
    """Both kinds of retention are counted together."""
    retained, evicted = sum(row["retained"] for row in rows), sum(row["evicted"] for row in rows)
    return {
        "retentionMsgs": retained,
        "completedRetentionMsgs": None,
        "evictionMsgs": evicted,
        "totalMsgs": retained + evicted,
        "eventCount": sum(row["retained"] + row["evicted"] > 0 for row in rows),
    }


def _shown(row: asyncpg.Record) -> Json:
    return {name: iso_millis(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _with_unit(row: asyncpg.Record) -> str:
    return f"{row['setting']} {row['unit']}" if row["unit"] else str(row["setting"])


def _ratio(hit: int, read: int) -> float | None:
    return round(hit * 100 / (hit + read), 2) if hit + read else None


def _postgres(
    now: datetime, database: asyncpg.Record, tables: list[Json], sessions: list[Json], settings: dict[str, str]
) -> Json:
    heap = [(t["table"], t["heap_blks_hit"] or 0, t["heap_blks_read"] or 0) for t in tables]
    index = [(t["table"], t["idx_blks_hit"] or 0, t["idx_blks_read"] or 0) for t in tables]
    return {
        "timestamp": iso_millis(now),
        "database": {key: database[key] for key in ("name", "version", "connections", "size_bytes")},
        "databaseCache": {
            key: database[key] for key in ("blks_hit", "blks_read", "hit_ratio", "temp_bytes", "deadlocks")
        },
        "tableCache": [{"table": t, "hit": h, "read": r, "hitRatio": _ratio(h, r)} for t, h, r in heap],
        "indexCache": [{"table": t, "hit": h, "read": r, "hitRatio": _ratio(h, r)} for t, h, r in index],
        "cacheSummary": {
            "tables": _ratio(sum(h for _, h, _ in heap), sum(r for _, _, r in heap)),
            "indexes": _ratio(sum(h for _, h, _ in index), sum(r for _, _, r in index)),
        },
        "deadTuples": [{"table": t["table"], "live": t["live"], "dead": t["dead"]} for t in tables],
        "hotUpdates": [
            {
                "table": t["table"],
                "updates": t["updates"],
                "hot": t["hot_updates"],
                "hotRatio": _ratio(t["hot_updates"], t["updates"] - t["hot_updates"]),
            }
            for t in tables
        ],
        "activeQueries": sessions,
        "autovacuumStatus": [
            {
                "table": t["table"],
                "lastVacuum": _moment(t["last_vacuum"]),
                "lastAutovacuum": _moment(t["last_autovacuum"]),
                "lastAnalyze": _moment(t["last_analyze"]),
                "lastAutoanalyze": _moment(t["last_autoanalyze"]),
                "vacuums": t["vacuum_count"],
                "autovacuums": t["autovacuum_count"],
            }
            for t in tables
        ],
        "bufferConfig": settings,
        "bufferUsage": [{"table": t, "hit": h, "read": r} for t, h, r in heap],
        "tableSizes": [
            {
                "table": t["table"],
                "totalBytes": t["total_bytes"],
                "tableBytes": t["table_bytes"],
                "indexBytes": t["index_bytes"],
            }
            for t in tables
        ],
    }


def _moment(value: datetime | None) -> str | None:
    return None if value is None else iso_millis(value)
