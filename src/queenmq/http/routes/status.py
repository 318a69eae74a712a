"""How things are and were: GET /api/v1/status and below"""

from __future__ import annotations

from typing import Any

from queenmq.access.permissions import Verb
from queenmq.core.names import iso_millis, optional_iso_millis
from queenmq.core.options import DEFAULT_TTL_S
from queenmq.errors import InvalidRequest
from queenmq.http.answers.queues import (
    Cursor,
    Messages,
    PartitionStatus,
    QueueConfig,
    QueuesPage,
    QueueStatus,
    QueueStatusDetail,
    Totals,
)
from queenmq.http.decoding import query_flag, query_name
from queenmq.http.openapi import FLAG, LABEL, Parameter, documented
from queenmq.http.paging import page
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes.analytics import state_of, worker
from queenmq.http.routes.resources import (
    NAMESPACE,
    PARTITION_PAGE,
    TASK,
    messages,
    queue_detail,
    queue_listed,
)
from queenmq.http.schemas import Error, Page
from queenmq.http.scopes import all_queues, listing, queue_in_path, queue_in_query, visible
from queenmq.http.time_range import PARAMETERS as RANGE
from queenmq.http.time_range import query_range, shown
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import activity, queues, servers
from queenmq.reports import status as report
from queenmq.reports.overview import Overview
from queenmq.reports.scope import Scope, TimeRange

Json = dict[str, Any]

_DEFAULT_LIMIT = 100
_STATUS_QUEUES = 1000
_MINUTES = {"minute": 1, "hour": 60, "day": 1440}
_MOST_POINTS = 10_000
_NARROWED = (Parameter("queue", LABEL, "Only of this queue."), NAMESPACE, TASK)
_INTERVAL = Parameter("interval", {"type": "string", "enum": [*_MINUTES, ""]}, "Width of a point.", "hour")


@documented({200: Json}, query=[*RANGE, *_NARROWED])
async def status(request: Request, context: Context) -> Response:
    """Throughput, backlog, leases, dead letters and errors over a range of time, the last hour by default."""
    span, scope = query_range(request, 1), _scope(request)
    await context.broker.statistics.freshen()
    found = await report.status(context.reports, span, scope, _STATUS_QUEUES)
    row, series = found.overview, found.series
    # How the servers are is not for a token that is restricted to some queues.
    samples = found.samples if visible(request) is None else []
    states = servers.by_bucket(samples)
    body = {
        **_span(span, series),
        "measured": None if visible(request) is not None else _measured(samples, span, context),
        "throughput": [_point(point, span.bucket_minutes) | state_of(states.get(point.bucket)) for point in series],
        "queues": [_queue(queue) for queue in found.queues],
        "messages": _messages(row, series),
        "leases": {
            "active": row.leases,
            "partitionsWithLeases": row.leases,
            "totalBatchSize": row.leased,
            "totalAcked": row.consumed,
        },
        "deadLetterQueue": {
            "totalMessages": row.dead_letters,
            "affectedPartitions": found.affected_partitions,
            "topErrors": [
                {
                    "error": one.error,
                    "fingerprint": one.fingerprint,
                    "count": one.count,
                    "lastFailedAt": iso_millis(one.last_at),
                }
                for one in found.top_errors
            ],
        },
        "failingHeads": [
            {
                "queue": one.queue,
                "consumerGroup": one.consumer_group,
                "partitions": one.partitions,
                "mostAttempts": one.attempts,
            }
            for one in found.failing
        ],
        "workers": [
            worker(sample) | {"messagesProcessed": found.processed.get(server, 0)}
            for server, sample in servers.last_of_each(samples).items()
        ],
        "errors": {
            "dbErrors": sum(point.db_errors for point in series),
            "ackFailed": sum(point.ack_failed for point in series),
            "dlqMessages": sum(point.dead_lettered for point in series),
        },
        "statsAge": row.age_s,
    }
    return Response(200, body)


@documented({200: QueuesPage}, query=[NAMESPACE, TASK, *PARTITION_PAGE])
async def status_of_queues(request: Request, context: Context) -> Response:
    """The queues by name, with their figures, a page at a time."""
    limit, offset = page(request, context.settings, _DEFAULT_LIMIT)
    namespace, task = query_name(request.query, "namespace"), query_name(request.query, "task")
    await context.broker.statistics.freshen()
    rows = await queues.page(
        context.reports,
        namespace=namespace,
        task=task,
        search=None,
        limit=limit,
        offset=offset,
        permitted=visible(request),
    )
    return Response(200, QueuesPage(queues=[queue_listed(row) for row in rows], pagination=Page(limit, offset)))


@documented(
    {200: QueueStatusDetail, 404: Error},
    query=[Parameter("includePartitions", FLAG, "Include the partitions.", True), *PARTITION_PAGE],
)
async def status_of_queue(request: Request, context: Context) -> Response:
    """A queue with its options, its partitions by name, and its current figures."""
    limit, offset = page(request, context.settings, _DEFAULT_LIMIT)
    wanted = query_flag(request.query, "includePartitions", True)
    found = await queue_detail(context, request.params[0], limit, offset)
    detail = QueueStatusDetail(
        queue=_queue_status(found.queue),
        partitions=[_partition_status(row) for row in found.partitions] if wanted else [],
        totals=_totals(messages(found.totals)),
    )
    return Response(200, detail)


@documented({200: Json}, query=[_INTERVAL, *RANGE, *_NARROWED])
async def status_analytics(request: Request, context: Context) -> Response:
    """Number of pushed messages by minute, hour or day; the last day by default."""
    interval = request.query.get("interval") or "hour"
    if interval not in _MINUTES:
        raise InvalidRequest("interval must be minute, hour or day", "interval")
    span, width = query_range(request, 24), _MINUTES[interval]
    if (span.until - span.since).total_seconds() / 60 / width > _MOST_POINTS:
        raise InvalidRequest(f"the range has more than {_MOST_POINTS} points: choose a wider interval", "interval")
    series = await activity.series(context.reports, span, _scope(request), width)
    points = [{"timestamp": iso_millis(row.bucket), "messages": row.push_messages} for row in series]
    return Response(200, {"dataPoints": points, "interval": interval, **shown(span)})


@documented({200: Json})
async def status_of_buffers(_: Request, context: Context) -> Response:
    """Messages in the journal of this server, and quarantined records."""
    healthy = await context.broker.database_answers()
    journal = context.broker.journal
    body = {
        "pending": 0 if journal is None else journal.figures().messages,
        "failed": 0 if journal is None else journal.figures().quarantined,
        "dbHealthy": healthy,
        "worker": context.settings.server.worker_id,
    }
    return Response(200, body)


def _measured(samples: list[servers.Sample], span: TimeRange, context: Context) -> list[str] | None:
    """None if samples are not taken."""
    statistics = context.settings.statistics
    if not statistics.sample_interval_ms:
        return None
    return [iso_millis(bucket) for bucket in servers.measured(samples, span, statistics.aggregate_interval_s)]


def _scope(request: Request) -> Scope:
    query = request.query
    return Scope(query_name(query, "queue"), query_name(query, "namespace"), query_name(query, "task"))


def _span(span: TimeRange, series: list[activity.Point]) -> Json:
    return {"timeRange": shown(span), "bucketMinutes": span.bucket_minutes, "pointCount": len(series)}


def _point(row: activity.Point, minutes: int) -> Json:
    seconds = minutes * 60
    return {
        "timestamp": iso_millis(row.bucket),
        "ingested": row.push_messages,
        "processed": row.ack_success,
        "popMessages": row.pop_messages,
        "ingestedPerSecond": row.push_messages / seconds,
        "processedPerSecond": row.ack_success / seconds,
        "popPerSecond": row.pop_messages / seconds,
        "avgLagMs": row.average_lag_ms if row.lag_count else 0,
        "maxLagMs": row.lag_max_ms,
        "dbErrors": row.db_errors,
        "ackFailed": row.ack_failed,
        "dlqCount": row.dead_lettered,
    }


def _queue(row: queues.ListedQueue) -> Json:
    return {
        "id": str(row.id),
        "name": row.name,
        "namespace": row.namespace,
        "task": row.task,
        "partitions": row.partitions,
        "totalConsumed": row.consumed,
    }


def _messages(row: Overview, series: list[activity.Point]) -> Json:
    pushes = sum(point.push_requests for point in series), sum(point.push_messages for point in series)
    pops = sum(point.pop_requests for point in series), sum(point.pop_messages for point in series)
    acks = sum(point.ack_requests for point in series), sum(point.ack_success for point in series)
    asked = {"push": pushes, "pop": pops, "ack": acks}
    return {
        "total": row.total,
        "pending": row.pending,
        "processing": row.processing,
        "completed": row.completed,
        "failed": row.failed,
        "deadLetter": row.dead_letters,
        "requests": {name: requests for name, (requests, _) in asked.items()},
        "batchEfficiency": {name: done / requests if requests else 0 for name, (requests, done) in asked.items()},
    }


def _queue_status(row: queues.Queue) -> QueueStatus:
    return QueueStatus(
        id=str(row.id),
        name=row.name,
        namespace=row.namespace,
        task=row.task,
        priority=row.priority,
        created_at=iso_millis(row.created_at),
        config=QueueConfig(
            lease_time=row.lease_time_s,
            retry_limit=row.retry_limit,
            retry_delay=row.retry_delay_ms,
            ttl=DEFAULT_TTL_S if row.ttl_s is None else row.ttl_s,
            max_queue_size=row.max_size,
            dead_letter_queue=row.dead_letter_queue,
        ),
        options=row.options(),
    )


def _partition_status(row: queues.QueuePartition) -> PartitionStatus:
    figures = messages(row)
    return PartitionStatus(
        id=str(row.partition_id),
        name=row.name,
        created_at=iso_millis(row.created_at),
        messages=figures,
        stats=figures,
        cursor=Cursor(total_consumed=row.consumed, batches_consumed=None),
        last_activity=optional_iso_millis(row.last_activity),
        oldest_message=optional_iso_millis(row.oldest_at),
        newest_message=optional_iso_millis(row.newest_at),
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


ROUTES = (
    Route("GET", "/api/v1/status", status, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route("GET", "/api/v1/status/queues", status_of_queues, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/status/queues/{queue}", status_of_queue, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
    Route("GET", "/api/v1/status/analytics", status_analytics, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route("GET", "/api/v1/status/buffers", status_of_buffers, Role.READ_ONLY, scope=all_queues(Verb.READ)),
)
