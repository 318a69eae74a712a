"""How things are and were: GET /api/v1/status and below"""

from __future__ import annotations

from typing import Any

import asyncpg

from queenmq.core.names import iso_millis
from queenmq.core.options import DEFAULT_TTL_S, QueueOptions
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import query_flag, query_name
from queenmq.http.figures import (
    Cursor,
    Messages,
    PartitionStatus,
    QueueConfig,
    QueuesPage,
    QueueStatus,
    QueueStatusDetail,
    Totals,
)
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import FLAG, LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.analytics import state_of, states_by_bucket, worker
from queenmq.http.routes.resources import (
    NAMESPACE,
    PARTITION_PAGE,
    TASK,
    messages,
    moment,
    page,
    queue_listed,
    queue_with_partitions,
)
from queenmq.http.schemas import Error, Page
from queenmq.http.time_range import PARAMETERS as RANGE
from queenmq.http.time_range import TimeRange, query_range

Json = dict[str, Any]

_DEFAULT_LIMIT = 100
_STATUS_QUEUES = 1000
_MINUTES = {"minute": 1, "hour": 60, "day": 1440}
_MOST_POINTS = 10_000
_NARROWED = (Parameter("queue", LABEL, "Only of this queue."), NAMESPACE, TASK)
_INTERVAL = Parameter("interval", {"type": "string", "enum": [*_MINUTES, ""]}, "Width of a point.", "hour")


def add_routes(router: Router, engine: Engine) -> None:
    reports, statistics = engine.reports, engine.statistics

    @documented({200: Json}, query=[*RANGE, *_NARROWED])
    async def status(request: Request) -> Response:
        """Throughput, backlog, leases, dead letters and errors over a range of time, the last hour by default."""
        span = query_range(request, 1)
        narrowed = [query_name(request, name) for name in ("queue", "namespace", "task")]
        await statistics.freshen()
        row = await reports.one("overview", *narrowed)
        series = await reports.rows("activity_series", span.since, span.until, span.bucket_minutes, *narrowed)
        samples = await reports.rows("sample_series", span.since, span.until, span.bucket_minutes, None, None)
        states = states_by_bucket(samples)
        processed = {row["server"]: row[1] for row in await reports.rows("processed_by_server", span.since, span.until)}
        queues = await reports.rows("queues_listed", narrowed[1], narrowed[2], narrowed[0], _STATUS_QUEUES, 0)
        body = {
            **_span(span, series),
            "throughput": [
                _point(point, span.bucket_minutes) | states.get(point["bucket"], state_of([])) for point in series
            ],
            "queues": [_queue(queue) for queue in queues if narrowed[0] in (None, queue["name"])],
            "messages": _messages(row, series),
            "leases": {
                "active": row["leases"],
                "partitionsWithLeases": row["leases"],
                "totalBatchSize": row["leased"],
                "totalAcked": row["consumed"],
            },
            "deadLetterQueue": {
                "totalMessages": row["dead_letters"],
                "affectedPartitions": (await reports.one("affected_partitions", narrowed[0]))[0],
                "topErrors": [dict(error) for error in await reports.rows("top_errors", narrowed[0])],
            },
            "workers": [
                worker(sample) | {"messagesProcessed": processed.get(server, 0)}
                for server, sample in {sample["server"]: sample for sample in samples}.items()
            ],
            "errors": {
                "dbErrors": _total(series, "db_errors"),
                "ackFailed": _total(series, "ack_failed"),
                "dlqMessages": _total(series, "dead_lettered"),
            },
            "statsAge": row["age_s"],
        }
        return json_response(200, body)

    @documented({200: QueuesPage}, query=[NAMESPACE, TASK, *PARTITION_PAGE])
    async def status_of_queues(request: Request) -> Response:
        """The queues by name, with their figures, a page at a time."""
        limit, offset = page(request, engine, _DEFAULT_LIMIT)
        narrowed = [query_name(request, name) for name in ("namespace", "task")]
        await statistics.freshen()
        rows = await reports.rows("queues_listed", *narrowed, None, limit, offset)
        return json_response(
            200, QueuesPage(queues=[queue_listed(row) for row in rows], pagination=Page(limit, offset))
        )

    @documented(
        {200: QueueStatusDetail, 404: Error},
        query=[Parameter("includePartitions", FLAG, "Also tell of the partitions.", True), *PARTITION_PAGE],
    )
    async def status_of_queue(request: Request) -> Response:
        """A queue with its settings, its partitions by name, and its figures as they are now."""
        limit, offset = page(request, engine, _DEFAULT_LIMIT)
        wanted = query_flag(request, "includePartitions", True)
        queue, partitions, totals = await queue_with_partitions(engine, request.params[0], limit, offset)
        detail = QueueStatusDetail(
            queue=_queue_status(queue),
            partitions=[_partition_status(row) for row in partitions] if wanted else [],
            totals=_totals(totals),
        )
        return json_response(200, detail)

    @documented({200: Json}, query=[_INTERVAL, *RANGE, *_NARROWED])
    async def status_analytics(request: Request) -> Response:
        """How many messages were pushed, by minute, hour or day; over the last day by default."""
        interval = request.query.get("interval") or "hour"
        if interval not in _MINUTES:
            raise InvalidRequest("interval must be minute, hour or day", "interval")
        span, width = query_range(request, 24), _MINUTES[interval]
        if (span.until - span.since).total_seconds() / 60 / width > _MOST_POINTS:
            raise InvalidRequest(f"the range has more than {_MOST_POINTS} points: choose a wider interval", "interval")
        narrowed = [query_name(request, name) for name in ("queue", "namespace", "task")]
        series = await reports.rows("activity_series", span.since, span.until, width, *narrowed)
        points = [{"timestamp": iso_millis(row["bucket"]), "messages": row["push_messages"]} for row in series]
        return json_response(200, {"dataPoints": points, "interval": interval, **span.shown()})

    @documented({200: Json})
    async def status_of_buffers(_: Request) -> Response:
        """What waits outside of the database: messages in this server's journal, and records that were set aside."""
        healthy = await engine.administration.database_answers()
        buffer = engine.buffer
        body = {
            "pending": 0 if buffer is None else buffer.messages,
            "failed": 0 if buffer is None else len(buffer.journal.set_aside_sizes()),
            "dbHealthy": healthy,
            "worker": engine.settings.worker_id,
        }
        return json_response(200, body)

    router.add("GET", "/api/v1/status", status, Role.READ_ONLY)
    router.add("GET", "/api/v1/status/queues", status_of_queues, Role.READ_ONLY)
    router.add("GET", "/api/v1/status/queues/{queue}", status_of_queue, Role.READ_ONLY)
    router.add("GET", "/api/v1/status/analytics", status_analytics, Role.READ_ONLY)
    router.add("GET", "/api/v1/status/buffers", status_of_buffers, Role.READ_ONLY)


def _span(span: TimeRange, series: list[asyncpg.Record]) -> Json:
    return {"timeRange": span.shown(), "bucketMinutes": span.bucket_minutes, "pointCount": len(series)}


def _total(series: list[asyncpg.Record], name: str) -> int:
    total: int = sum(row[name] for row in series)
    return total


def _point(row: asyncpg.Record, minutes: int) -> Json:
    seconds = minutes * 60
    return {
        "timestamp": iso_millis(row["bucket"]),
        "ingested": row["push_messages"],
        "processed": row["ack_success"],
        "popMessages": row["pop_messages"],
        "ingestedPerSecond": row["push_messages"] / seconds,
        "processedPerSecond": row["ack_success"] / seconds,
        "popPerSecond": row["pop_messages"] / seconds,
        "avgLagMs": row["lag_sum_ms"] / row["lag_count"] if row["lag_count"] else 0,
        "maxLagMs": row["lag_max_ms"],
        "dbErrors": row["db_errors"],
        "ackFailed": row["ack_failed"],
        "dlqCount": row["dead_lettered"],
    }


def _queue(row: asyncpg.Record) -> Json:
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "namespace": row["namespace"],
        "task": row["task"],
        "partitions": row["partitions"],
        "totalConsumed": row["consumed"],
    }


def _messages(row: asyncpg.Record, series: list[asyncpg.Record]) -> Json:
    asked = {name: _total(series, f"{name}_requests") for name in ("push", "pop", "ack")}
    done = {"push": "push_messages", "pop": "pop_messages", "ack": "ack_success"}
    return {
        "total": row["total"],
        "pending": row["pending"],
        "processing": row["processing"],
        "completed": row["completed"],
        "failed": row["failed"],
        "deadLetter": row["dead_letters"],
        "requests": asked,
        "batchEfficiency": {
            name: _total(series, done[name]) / requests if requests else 0 for name, requests in asked.items()
        },
    }


def _queue_status(row: asyncpg.Record) -> QueueStatus:
    return QueueStatus(
        id=str(row["id"]),
        name=row["name"],
        namespace=row["namespace"],
        task=row["task"],
        priority=row["priority"],
        created_at=iso_millis(row["created_at"]),
        config=QueueConfig(
            lease_time=row["lease_time_s"],
            retry_limit=row["retry_limit"],
            retry_delay=row["retry_delay_ms"],
            ttl=DEFAULT_TTL_S if row["ttl_s"] is None else row["ttl_s"],
            max_queue_size=row["max_size"],
            dead_letter_queue=row["dead_letter_queue"],
        ),
        options=_options(row),
    )


def _options(row: asyncpg.Record) -> QueueOptions:
    return QueueOptions(
        lease_time=row["lease_time_s"],
        max_size=row["max_size"],
        ttl=row["ttl_s"],
        retry_limit=row["retry_limit"],
        retry_delay=row["retry_delay_ms"],
        dead_letter_queue=row["dead_letter_queue"],
        dlq_after_max_retries=row["dlq_after_max_retries"],
        priority=row["priority"],
        delayed_processing=row["delayed_processing_s"],
        window_buffer=row["window_buffer_s"],
        retention_seconds=row["retention_s"],
        completed_retention_seconds=row["completed_retention_s"],
        retention_enabled=row["retention_enabled"],
        encryption_enabled=row["encryption_enabled"],
        max_wait_time_seconds=row["max_wait_time_s"],
        archive_before_delete=row["archive_before_delete"],
    )


def _partition_status(row: asyncpg.Record) -> PartitionStatus:
    figures = messages(row)
    return PartitionStatus(
        id=str(row["partition_id"]),
        name=row["name"],
        created_at=iso_millis(row["created_at"]),
        messages=figures,
        stats=figures,
        cursor=Cursor(total_consumed=row["consumed"], batches_consumed=None),
        last_activity=moment(row["last_activity"]),
        oldest_message=moment(row["oldest_at"]),
        newest_message=moment(row["newest_at"]),
    )


def _totals(figures: Messages) -> Totals:
    return Totals(
        total=figures.total,
        pending=figures.pending,
        processing=figures.processing,
        completed=figures.completed,
        failed=figures.failed,
        dead_letter=figures.dead_letter,
        messages=figures,
    )
