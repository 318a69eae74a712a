"""Histories of servers and queues, and what PostgreSQL says: GET /api/v1/analytics/*"""

from __future__ import annotations

from typing import Any

import msgspec

from queenmq.access.permissions import Verb
from queenmq.core.names import iso_millis, optional_iso_millis
from queenmq.http.decoding import query_name
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import all_queues, queue_in_query
from queenmq.http.time_range import PARAMETERS as RANGE
from queenmq.http.time_range import query_range, shown
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import activity, horizon, postgres, servers
from queenmq.reports import analytics as report
from queenmq.reports.scope import TimeRange

Json = dict[str, Any]

_MOST_QUEUES = 20
_MOST_LISTED = 100
_MOST_SESSIONS = 50
_QUEUE = Parameter("queue", LABEL, f"Only this queue; else the {_MOST_QUEUES} that saw most at the end of the range.")
_HOST = Parameter("hostname", LABEL, "Only servers of this host.")
_WORKER = Parameter("workerId", LABEL, "Only servers with this WORKER_ID.")


@documented({200: Json}, query=[*RANGE, _HOST, _WORKER])
async def system_metrics(request: Request, context: Context) -> Response:
    """CPU, memory, connections and queues of each server over time; the last hour by default."""
    span = query_range(request, 1)
    hostname, worker_id = query_name(request.query, "hostname"), query_name(request.query, "workerId")
    rows = await servers.samples(context.reports, span, hostname, worker_id)
    replicas: dict[str, Json] = {}
    for row in rows:
        replica = replicas.setdefault(row.server, _server(row) | {"timeSeries": []})
        figures = msgspec.json.decode(row.figures)
        point = {"timestamp": iso_millis(row.bucket), "sampleCount": row.samples, "metrics": figures}
        replica["timeSeries"].append(point)
    body = {
        "timeRange": shown(span),
        "replicas": list(replicas.values()),
        "replicaCount": len(replicas),
        "bucketMinutes": span.bucket_minutes,
        "pointCount": len(rows),
    }
    return Response(200, body)


@documented({200: Json}, query=RANGE)
async def worker_metrics(request: Request, context: Context) -> Response:
    """Activity and state of all servers over time; the last hour by default."""
    span = query_range(request, 1)
    found = await report.work(context.reports, span, _MOST_LISTED)
    series, states = found.series, servers.by_bucket(found.samples)
    body = {
        "timeRange": shown(span),
        "bucketMinutes": span.bucket_minutes,
        "pointCount": len(series),
        "timeSeries": [_work(row, span.bucket_minutes) | state_of(states.get(row.bucket)) for row in series],
        "workers": [worker(row) for row in servers.last_of_each(found.samples).values()],
        "queues": [_lag(row) for row in found.last_minute],
        "summary": _summary(series) | {"pendingMessages": found.overview.pending},
    }
    return Response(200, body)


@documented({200: list[Json]})
async def queue_lag(_: Request, context: Context) -> Response:
    """Age of messages at their delivery, by queue, in the last whole minute."""
    rows = await activity.last_minute(context.reports, min(_MOST_LISTED, context.settings.limits.max_items))
    return Response(200, [_lag(row) | {"bucketTime": iso_millis(row.bucket)} for row in rows])


@documented({200: Json}, query=[*RANGE, _QUEUE])
async def queue_ops(request: Request, context: Context) -> Response:
    """Pushes, pops and acks of each queue over time; the last hour by default."""
    span = query_range(request, 1)
    rows = await activity.by_queue(context.reports, span, query_name(request.query, "queue"), _MOST_QUEUES)
    body = _with_range(span, [_operations(row, span.bucket_minutes * 60) for row in rows])
    return Response(200, body | {"queues": sorted({row.queue_name for row in rows})})


@documented({200: Json}, query=[*RANGE, _QUEUE])
async def queue_parked_replicas(request: Request, context: Context) -> Response:
    """Number of waiting long polls by server and queue over time; the last hour by default."""
    span = query_range(request, 1)
    found = await report.parked(context.reports, span, query_name(request.query, "queue"), _MOST_QUEUES)
    rows, known = found.points, found.servers
    replicas = {row.server: _replica(row.server, known) for row in rows}
    series = [
        {
            "bucket": iso_millis(row.bucket),
            "queueName": row.queue_name,
            **replicas[row.server],
            "parkedCount": row.parked,
        }
        for row in rows
    ]
    return Response(200, _with_range(span, series) | {"replicas": list(replicas.values())})


@documented({200: Json}, query=RANGE)
async def retention(request: Request, context: Context) -> Response:
    """Messages deleted by retention and eviction over time; the last hour by default."""
    span = query_range(request, 1)
    rows = await activity.series(context.reports, span)
    series = [{"bucket": iso_millis(row.bucket), **_deleted([row])} for row in rows]
    return Response(200, _with_range(span, series) | {"totals": _deleted(rows)})


@documented({200: Json})
async def postgres_stats(_: Request, context: Context) -> Response:
    """Statistics of PostgreSQL about this database and the tables of Queen."""
    return Response(200, _postgres(await postgres.figures(context.reports, _MOST_SESSIONS)))


@documented({200: Json})
async def held_horizon(_: Request, context: Context) -> Response:
    """Who keeps VACUUM from removing dead rows, the oldest first: sessions, standbys, slots and prepared transactions.

    `heldForSeconds` counts from when the server has first seen it, where PostgreSQL does not say since when.
    """
    found = await horizon.horizon(context.reports, context.first_seen)
    return Response(200, {"holders": [_holder(one) for one in found.holders], "seesAllSessions": found.sees_all})


def _holder(one: horizon.Holder) -> Json:
    return {
        "kind": one.kind,
        "name": one.name,
        "pid": one.pid,
        "user": one.username,
        "application": one.application,
        "state": one.state,
        "heldForSeconds": one.seconds,
        "transactions": one.transactions,
        "description": horizon.described(one),
        "advice": horizon.advice(one),
    }


base = "/api/v1/analytics/"


def _with_range(span: TimeRange, series: list[Json]) -> Json:
    return {"timeRange": shown(span), "bucketMinutes": span.bucket_minutes, "series": series}


def _server(row: servers.Sample) -> Json:
    return {"hostname": row.hostname, "port": row.port, "workerId": row.worker_id}


def _replica(server: str, known: dict[str, servers.Sample]) -> Json:
    """A server that has not stored a sample yet goes by its id."""
    sample = known.get(server)
    if sample is None:
        return {"hostname": server, "workerId": ""}
    return {"hostname": sample.hostname, "workerId": sample.worker_id}


def worker(row: servers.Sample) -> Json:
    """How a server was at last."""
    measured = row.measured()
    return _server(row) | {
        "avgEventLoopLagMs": measured.event_loop.lag_ms.avg,
        "maxEventLoopLagMs": measured.event_loop.lag_ms.max,
        "freeSlots": measured.event_loop.free_slots.last,
        "dbConnections": measured.database.pool_size.last,
        "jobQueueSize": measured.threadpool.db.queue_size.last,
        "backoffSize": measured.backoff.groups.last,
        "lastSeen": iso_millis(row.at),
    }


def state_of(together: servers.Together | None) -> Json:
    """How the servers together were at one time; zeros if there is no sample of it."""
    state = together or servers.together([])
    return {
        "avgEventLoopLagMs": state.loop_lag_avg_ms,
        "maxEventLoopLagMs": state.loop_lag_max_ms,
        "avgFreeSlots": state.free_slots_avg,
        "minFreeSlots": state.free_slots_min,
        "dbConnections": state.connections,
        "avgJobQueueSize": state.waiting_avg,
        "maxJobQueueSize": state.waiting_max,
        "backoffSize": state.backed_off,
        "queenCpuUserPct": state.user_percent,
        "queenCpuSysPct": state.system_percent,
        "queenRssMb": state.resident_mb,
        "dbPoolActive": state.connections_active,
        "dbPoolIdle": state.connections_idle,
        "dbPoolSize": state.connections,
    }


def _work(row: activity.Point, minutes: int) -> Json:
    seconds = minutes * 60
    return {
        "timestamp": iso_millis(row.bucket),
        "pushMessages": row.push_messages,
        "popMessages": row.pop_messages,
        "ackMessages": row.ack_success,
        "pushRequests": row.push_requests,
        "popRequests": row.pop_requests,
        "ackRequests": row.ack_requests,
        "jobsDone": row.push_requests + row.pop_requests + row.ack_requests,
        "pushPerSecond": row.push_messages / seconds,
        "popPerSecond": row.pop_messages / seconds,
        "ackPerSecond": row.ack_success / seconds,
        "avgLagMs": row.average_lag_ms,
        "maxLagMs": row.lag_max_ms,
        "lagCount": row.lag_count,
        "dbErrors": row.db_errors,
        "ackSuccess": row.ack_success,
        "ackFailed": row.ack_failed,
        "dlqCount": row.dead_lettered,
    }


def _summary(rows: list[activity.Point]) -> Json:
    return {
        "totalPushMessages": sum(row.push_messages for row in rows),
        "totalPopMessages": sum(row.pop_messages for row in rows),
        "totalAckMessages": sum(row.ack_success for row in rows),
        "totalPushRequests": sum(row.push_requests for row in rows),
        "totalPopRequests": sum(row.pop_requests for row in rows),
        "totalAckRequests": sum(row.ack_requests for row in rows),
        "totalDbErrors": sum(row.db_errors for row in rows),
        "totalAckFailed": sum(row.ack_failed for row in rows),
        "totalDlq": sum(row.dead_lettered for row in rows),
    }


def _lag(row: activity.QueueMinute) -> Json:
    return {
        "queueName": row.queue_name,
        "popCount": row.pop_messages,
        "avgLagMs": row.average_lag_ms,
        "maxLagMs": row.lag_max_ms,
    }


def _operations(row: activity.QueuePoint, seconds: int) -> Json:
    return {
        "bucket": iso_millis(row.bucket),
        "queueName": row.queue_name,
        "pushRequests": row.push_requests,
        "pushMessages": row.push_messages,
        "popMessages": row.pop_messages,
        "popEmpty": row.pop_empty,
        "ackRequests": row.ack_requests,
        "ackSuccess": row.ack_success,
        "ackFailed": row.ack_failed,
        "transactions": row.transactions,
        "partitionsCreated": None,
        "partitionsDeleted": None,
        "partitionCount": row.partitions,
        "avgLagMs": row.average_lag_ms,
        "maxLagMs": row.lag_max_ms,
        "pushPerSecond": row.push_messages / seconds,
        "popPerSecond": row.pop_messages / seconds,
        "ackPerSecond": row.ack_success / seconds,
        "emptyPerSecond": row.pop_empty / seconds,
        "parkedCount": row.parked,
    }


def _deleted(rows: list[activity.Point]) -> Json:
    """Both kinds of retention are counted together."""
    retained, evicted = sum(row.retained for row in rows), sum(row.evicted for row in rows)
    return {
        "retentionMsgs": retained,
        "completedRetentionMsgs": None,
        "evictionMsgs": evicted,
        "totalMsgs": retained + evicted,
        "eventCount": sum(row.retained + row.evicted > 0 for row in rows),
    }


def _session(session: postgres.Session) -> Json:
    return {
        "pid": session.pid,
        "application": session.application,
        "state": session.state,
        "wait_event_type": session.wait_event_type,
        "wait_event": session.wait_event,
        "since": optional_iso_millis(session.since),
        "seconds": session.seconds,
        "query": session.query,
    }


def _with_unit(setting: postgres.Setting) -> str:
    return f"{setting.setting} {setting.unit}" if setting.unit else setting.setting


def _ratio(hit: int, read: int) -> float | None:
    return round(hit * 100 / (hit + read), 2) if hit + read else None


def _postgres(found: postgres.PostgresFigures) -> Json:
    database, tables = found.database, found.tables
    heap = [(t.table, t.heap_blks_hit or 0, t.heap_blks_read or 0) for t in tables]
    index = [(t.table, t.idx_blks_hit or 0, t.idx_blks_read or 0) for t in tables]
    return {
        "timestamp": iso_millis(found.now),
        "database": {
            "name": database.name,
            "version": database.version,
            "connections": database.connections,
            "size_bytes": database.size_bytes,
            "tls": database.tls,
        },
        "databaseCache": {
            "blks_hit": database.blks_hit,
            "blks_read": database.blks_read,
            "hit_ratio": database.hit_ratio,
            "temp_bytes": database.temp_bytes,
            "deadlocks": database.deadlocks,
        },
        "tableCache": [{"table": t, "hit": h, "read": r, "hitRatio": _ratio(h, r)} for t, h, r in heap],
        "indexCache": [{"table": t, "hit": h, "read": r, "hitRatio": _ratio(h, r)} for t, h, r in index],
        "cacheSummary": {
            "tables": _ratio(sum(h for _, h, _ in heap), sum(r for _, _, r in heap)),
            "indexes": _ratio(sum(h for _, h, _ in index), sum(r for _, _, r in index)),
        },
        "deadTuples": [{"table": t.table, "live": t.live, "dead": t.dead} for t in tables],
        "hotUpdates": [
            {
                "table": t.table,
                "updates": t.updates,
                "hot": t.hot_updates,
                "hotRatio": _ratio(t.hot_updates, t.updates - t.hot_updates),
            }
            for t in tables
        ],
        "activeQueries": [_session(session) for session in found.sessions],
        "autovacuumStatus": [
            {
                "table": t.table,
                "lastVacuum": optional_iso_millis(t.last_vacuum),
                "lastAutovacuum": optional_iso_millis(t.last_autovacuum),
                "lastAnalyze": optional_iso_millis(t.last_analyze),
                "lastAutoanalyze": optional_iso_millis(t.last_autoanalyze),
                "vacuums": t.vacuum_count,
                "autovacuums": t.autovacuum_count,
            }
            for t in tables
        ],
        "bufferConfig": {setting.name: _with_unit(setting) for setting in found.settings},
        "bufferUsage": [{"table": t, "hit": h, "read": r} for t, h, r in heap],
        "tableSizes": [
            {
                "table": t.table,
                "totalBytes": t.total_bytes,
                "tableBytes": t.table_bytes,
                "indexBytes": t.index_bytes,
            }
            for t in tables
        ],
    }


ROUTES = (
    Route("GET", base + "system-metrics", system_metrics, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", base + "worker-metrics", worker_metrics, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", base + "queue-lag", queue_lag, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", base + "queue-ops", queue_ops, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route(
        "GET", base + "queue-parked-replicas", queue_parked_replicas, Role.READ_ONLY, scope=queue_in_query(Verb.READ)
    ),
    Route("GET", base + "retention", retention, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", base + "postgres-stats", postgres_stats, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", base + "horizon", held_horizon, Role.READ_ONLY, scope=all_queues(Verb.READ)),
)
