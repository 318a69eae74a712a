"""Queues, partitions, namespaces and tasks: GET /api/v1/resources/*, DELETE /api/v1/queues/{queue}/clear"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import asyncpg

from queenmq.core.names import check_name, iso_millis
from queenmq.engine.engine import Engine
from queenmq.errors import NotFound
from queenmq.http.administered import administered
from queenmq.http.decoding import query_count, query_name
from queenmq.http.figures import (
    Backlog,
    Cleared,
    Depth,
    Lag,
    Messages,
    NamespaceListed,
    NamespacesListed,
    Overview,
    PartitionDescribed,
    PartitionListed,
    PartitionsListed,
    QueueDescribed,
    QueueListed,
    QueuesListed,
    Refreshed,
    Spread,
    TaskListed,
    TasksListed,
    Throughput,
)
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import Error

MOST_OFFSET = 2**62
_MOST_QUEUES = 10_000
_MOST_PARTITIONS = 500
_REFRESH_S = 5.0
NAMESPACE = Parameter("namespace", LABEL, "Only of this namespace.")
TASK = Parameter("task", LABEL, "Only of this task.")
OFFSET = Parameter("offset", COUNT, "How many to leave out.", 0)
PARTITION_PAGE = (Parameter("limit", COUNT, "Most partitions; cut to the server's limit.", _MOST_PARTITIONS), OFFSET)
_QUEUE_PAGE = (Parameter("limit", COUNT, "Most entries; cut to the server's limit.", _MOST_QUEUES), OFFSET)


def add_routes(router: Router, engine: Engine) -> None:
    reports, statistics = engine.reports, engine.statistics

    @documented(
        {200: QueuesListed}, query=[NAMESPACE, TASK, Parameter("search", LABEL, "Part of the name."), *_QUEUE_PAGE]
    )
    async def list_queues(request: Request) -> Response:
        """The queues by name, with their figures."""
        narrowed = [query_name(request, name) for name in ("namespace", "task", "search")]
        limit, offset = page(request, engine, _MOST_QUEUES)
        await statistics.freshen()
        rows = await reports.rows("queues_listed", *narrowed, limit, offset)
        return json_response(200, QueuesListed(queues=[queue_listed(row) for row in rows]))

    @documented({200: QueueDescribed, 404: Error}, query=PARTITION_PAGE)
    async def describe_queue(request: Request) -> Response:
        """A queue with its partitions by name and their figures as they are now."""
        limit, offset = page(request, engine, _MOST_PARTITIONS)
        queue, partitions, totals = await queue_with_partitions(engine, request.params[0], limit, offset)
        described = QueueDescribed(
            id=str(queue["id"]),
            name=queue["name"],
            namespace=queue["namespace"],
            task=queue["task"],
            created_at=iso_millis(queue["created_at"]),
            partitions=[_partition_described(row) for row in partitions],
            totals=totals,
        )
        return json_response(200, described)

    @documented({200: PartitionsListed}, query=[Parameter("queue", LABEL, "Only of this queue."), *PARTITION_PAGE])
    async def list_partitions(request: Request) -> Response:
        """Partitions with their figures as they are now; of one queue by name, or of all."""
        queue = query_name(request, "queue")
        limit, offset = page(request, engine, _MOST_PARTITIONS)
        rows = await reports.rows("partitions_listed", queue, limit, offset)
        return json_response(200, PartitionsListed(partitions=[_partition_listed(row) for row in rows]))

    @documented({200: NamespacesListed}, query=_QUEUE_PAGE)
    async def list_namespaces(request: Request) -> Response:
        """The namespaces, with the sums of their queues."""
        limit, offset = page(request, engine, _MOST_QUEUES)
        await statistics.freshen()
        rows = await reports.rows("namespaces_listed", limit, offset)
        listed = [
            NamespaceListed(
                namespace=row["name"], queues=row["queues"], partitions=row["partitions"], messages=_backlog(row)
            )
            for row in rows
        ]
        return json_response(200, NamespacesListed(namespaces=listed))

    @documented({200: TasksListed}, query=_QUEUE_PAGE)
    async def list_tasks(request: Request) -> Response:
        """The tasks, with the sums of their queues."""
        limit, offset = page(request, engine, _MOST_QUEUES)
        await statistics.freshen()
        rows = await reports.rows("tasks_listed", limit, offset)
        listed = [
            TaskListed(task=row["name"], queues=row["queues"], partitions=row["partitions"], messages=_backlog(row))
            for row in rows
        ]
        return json_response(200, TasksListed(tasks=listed))

    @documented({200: Overview})
    async def overview(_: Request) -> Response:
        """Everything in a few numbers."""
        await statistics.freshen()
        row = await reports.one("overview", None, None, None)
        rates = await reports.one("recent_rates")
        shown = Overview(
            queues=row["queues"],
            partitions=row["partitions"],
            namespaces=row["namespaces"],
            tasks=row["tasks"],
            messages=messages(row),
            lag=Lag(time=_spread(row, "_s"), offset=_spread(row, "")),
            throughput=Throughput(ingested_per_second=rates["pushed"], processed_per_second=rates["acked"]),
            timestamp=iso_millis(row["now"]),
            stats_age=row["age_s"],
        )
        return json_response(200, shown)

    @documented(
        {200: Cleared, 202: Cleared, 404: Error}, query=[Parameter("partition", LABEL, "Only of this partition.")]
    )
    async def clear_queue(request: Request) -> Response:
        """Delete every message of a queue, or of one partition; its settings, groups and dead letters stay."""
        queue, partition = request.params[0], query_name(request, "partition")
        check_name(queue, "queue")
        standing = await engine.administration.clear(queue, partition)
        if standing is None:
            raise NotFound("Queue not found")
        finished = standing.operation_id is None
        return administered(
            standing, Cleared(cleared=finished, queue=queue, partition=partition, deleted=standing.done)
        )

    @documented({200: Refreshed})
    async def refresh_statistics(_: Request) -> Response:
        """Reckon the figures of every queue now; what takes longer than a few seconds goes on behind the answer."""
        await statistics.store_activity(engine.popper.waiting.registry.parked())
        queues = await statistics.refresh_within(_REFRESH_S)
        if queues is None:
            return json_response(
                200, Refreshed(skipped=True, reason="the figures are being reckoned in the background")
            )
        row = await reports.one("overview", None, None, None)
        refreshed = Refreshed(
            partition=row["partitions"],
            queue=queues,
            namespace=row["namespaces"],
            task=row["tasks"],
            system=1,
            cleanup=await statistics.forget_activity(),
        )
        return json_response(200, refreshed)

    router.add("GET", "/api/v1/resources/queues", list_queues, Role.READ_ONLY)
    router.add("GET", "/api/v1/resources/queues/{queue}", describe_queue, Role.READ_ONLY)
    router.add("GET", "/api/v1/resources/partitions", list_partitions, Role.READ_ONLY)
    router.add("GET", "/api/v1/resources/namespaces", list_namespaces, Role.READ_ONLY)
    router.add("GET", "/api/v1/resources/tasks", list_tasks, Role.READ_ONLY)
    router.add("GET", "/api/v1/resources/overview", overview, Role.READ_ONLY)
    router.add("DELETE", "/api/v1/queues/{queue}/clear", clear_queue, Role.ADMIN)
    router.add("POST", "/api/v1/stats/refresh", refresh_statistics, Role.ADMIN)


def page(request: Request, engine: Engine, default: int) -> tuple[int, int]:
    """The limit and the offset of a listing."""
    limit = query_count(request, "limit", min(default, engine.settings.max_items), engine.settings.max_items)
    return limit, query_count(request, "offset", 0, MOST_OFFSET)


async def queue_with_partitions(
    engine: Engine, name: str, limit: int, offset: int
) -> tuple[asyncpg.Record, list[asyncpg.Record], Messages]:
    """The queue, a page of its partitions, and its totals: of this moment if the page has them all, else as of the
    last look."""
    check_name(name, "queue")
    await engine.statistics.freshen()
    queue = await engine.reports.row("queue_described", name)
    if queue is None:
        raise NotFound("Queue not found")
    partitions = await engine.reports.rows("queue_partitions", queue["id"], limit, offset)
    if queue["total"] is None or (offset == 0 and len(partitions) < limit):
        return queue, partitions, _sum(partitions)
    return queue, partitions, messages(queue)


def _sum(rows: Iterable[asyncpg.Record]) -> Messages:
    totals = Messages(total=0, pending=0, processing=0, completed=0, failed=0, dead_letter=0)
    for row in rows:
        totals.total += row["total"]
        totals.pending += row["pending"]
        totals.processing += row["processing"]
        totals.completed += row["completed"]
        totals.failed += row["failed"]
        totals.dead_letter += row["dead_letters"]
    return totals


def messages(row: asyncpg.Record) -> Messages:
    return Messages(
        total=row["total"],
        pending=row["pending"],
        processing=row["processing"],
        completed=row["completed"],
        failed=row["failed"],
        dead_letter=row["dead_letters"],
    )


def moment(value: datetime | None) -> str | None:
    return None if value is None else iso_millis(value)


def queue_listed(row: asyncpg.Record) -> QueueListed:
    return QueueListed(
        id=str(row["id"]),
        name=row["name"],
        namespace=row["namespace"],
        task=row["task"],
        created_at=iso_millis(row["created_at"]),
        partitions=row["partitions"],
        messages=_depth(row),
    )


def _partition_described(row: asyncpg.Record) -> PartitionDescribed:
    return PartitionDescribed(
        id=str(row["partition_id"]),
        name=row["name"],
        created_at=iso_millis(row["created_at"]),
        stats=messages(row),
        oldest_message=moment(row["oldest_at"]),
        newest_message=moment(row["newest_at"]),
    )


def _partition_listed(row: asyncpg.Record) -> PartitionListed:
    return PartitionListed(
        id=str(row["partition_id"]),
        name=row["name"],
        queue=row["queue"],
        created_at=iso_millis(row["created_at"]),
        messages=_depth(row),
    )


def _depth(row: asyncpg.Record) -> Depth:
    return Depth(total=row["total"], pending=row["pending"], processing=row["processing"])


def _backlog(row: asyncpg.Record) -> Backlog:
    return Backlog(total=row["total"], pending=row["pending"])


def _spread(row: asyncpg.Record, suffix: str) -> Spread:
    return Spread(**{name: float(row[f"lag_{name}{suffix}"] or 0) for name in ("avg", "median", "min", "max")})
