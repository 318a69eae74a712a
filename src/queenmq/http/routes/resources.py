"""Queues, partitions, namespaces and tasks: GET /api/v1/resources/*, DELETE /api/v1/queues/{queue}/clear"""

from __future__ import annotations

from typing import get_args

from queenmq.access.permissions import Verb
from queenmq.core.names import check_name, iso_millis, optional_iso_millis
from queenmq.errors import NotFound
from queenmq.http.administered import administered, cleared
from queenmq.http.answers.queues import (
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
from queenmq.http.decoding import query_name, query_word
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error
from queenmq.http.scopes import all_queues, listing, queue_in_path, queue_in_query, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import overview as overviews
from queenmq.reports import partitions, queues

_MOST_QUEUES = 10_000
_MOST_PARTITIONS = 500
_REFRESH_S = 5.0
NAMESPACE = Parameter("namespace", LABEL, "Only of this namespace.")
TASK = Parameter("task", LABEL, "Only of this task.")
PARTITION_PAGE = page_parameters(_MOST_PARTITIONS, "partitions")
_ORDERS = get_args(queues.QueueOrder)
_FILTERS = get_args(queues.QueueFilter)
_QUEUE_PAGE = page_parameters(_MOST_QUEUES)


@documented(
    {200: QueuesListed},
    query=[
        NAMESPACE,
        TASK,
        Parameter("search", LABEL, "Part of the name."),
        Parameter("sort", {"type": "string", "enum": [*_ORDERS, ""]}, "The worst first, instead of by name."),
        Parameter("only", {"type": "string", "enum": [*_FILTERS, ""]}, "Only queues of which this is true."),
        *_QUEUE_PAGE,
    ],
)
async def list_queues(request: Request, context: Context) -> Response:
    """The queues by name, with their statistics."""
    namespace, task, search = (query_name(request.query, name) for name in ("namespace", "task", "search"))
    limit, offset = page(request, context.settings, _MOST_QUEUES)
    await context.broker.statistics.freshen()
    rows = await queues.page(
        context.reports,
        namespace=namespace,
        task=task,
        search=search,
        limit=limit,
        offset=offset,
        permitted=visible(request),
        sort=query_word(request.query, "sort", _ORDERS),
        only=query_word(request.query, "only", _FILTERS),
    )
    return Response(200, QueuesListed(queues=[queue_listed(row) for row in rows]))


@documented({200: QueueDescribed, 404: Error}, query=PARTITION_PAGE)
async def describe_queue(request: Request, context: Context) -> Response:
    """A queue with its partitions by name and their current figures."""
    limit, offset = page(request, context.settings, _MOST_PARTITIONS)
    detail = await queue_detail(context, request.params[0], limit, offset)
    queue = detail.queue
    described = QueueDescribed(
        id=str(queue.id),
        name=queue.name,
        namespace=queue.namespace,
        task=queue.task,
        created_at=iso_millis(queue.created_at),
        partitions=[_partition_described(row) for row in detail.partitions],
        totals=messages(detail.totals),
    )
    return Response(200, described)


@documented({200: PartitionsListed}, query=[Parameter("queue", LABEL, "Only of this queue."), *PARTITION_PAGE])
async def list_partitions(request: Request, context: Context) -> Response:
    """Partitions with their current figures, of one queue by name or of all queues."""
    queue = query_name(request.query, "queue")
    limit, offset = page(request, context.settings, _MOST_PARTITIONS)
    rows = await partitions.page(context.reports, queue, limit, offset)
    return Response(200, PartitionsListed(partitions=[_partition_listed(row) for row in rows]))


@documented({200: NamespacesListed}, query=_QUEUE_PAGE)
async def list_namespaces(request: Request, context: Context) -> Response:
    """The namespaces, with totals over their queues."""
    limit, offset = page(request, context.settings, _MOST_QUEUES)
    await context.broker.statistics.freshen()
    rows = await queues.namespaces(context.reports, limit, offset, visible(request))
    listed = [
        NamespaceListed(namespace=row.name, queues=row.queues, partitions=row.partitions, messages=_backlog(row))
        for row in rows
    ]
    return Response(200, NamespacesListed(namespaces=listed))


@documented({200: TasksListed}, query=_QUEUE_PAGE)
async def list_tasks(request: Request, context: Context) -> Response:
    """The tasks, with totals over their queues."""
    limit, offset = page(request, context.settings, _MOST_QUEUES)
    await context.broker.statistics.freshen()
    rows = await queues.tasks(context.reports, limit, offset, visible(request))
    listed = [
        TaskListed(task=row.name, queues=row.queues, partitions=row.partitions, messages=_backlog(row)) for row in rows
    ]
    return Response(200, TasksListed(tasks=listed))


@documented({200: Overview})
async def overview(_: Request, context: Context) -> Response:
    """Totals of all queues."""
    await context.broker.statistics.freshen()
    row, rates = await overviews.overview_and_rates(context.reports)
    shown = Overview(
        queues=row.queues,
        partitions=row.partitions,
        namespaces=row.namespaces,
        tasks=row.tasks,
        messages=messages(row),
        lag=Lag(
            time=_spread(row.lag_avg_s, row.lag_median_s, row.lag_min_s, row.lag_max_s),
            offset=_spread(row.lag_avg, row.lag_median, row.lag_min, row.lag_max),
        ),
        throughput=Throughput(ingested_per_second=rates.pushed, processed_per_second=rates.acked),
        timestamp=iso_millis(row.now),
        stats_age=row.age_s,
    )
    return Response(200, shown)


@documented({200: Cleared, 202: Cleared, 404: Error}, query=[Parameter("partition", LABEL, "Only of this partition.")])
async def clear_queue(request: Request, context: Context) -> Response:
    """Delete every message of a queue or of one partition; options, groups and dead letters stay."""
    queue, partition = request.params[0], query_name(request.query, "partition")
    check_name(queue, "queue")
    progress = await context.broker.clear(queue, partition)
    if progress is None:
        raise NotFound("Queue not found")
    finished = progress.operation_id is None
    return administered(progress, cleared(queue, partition, progress.done, finished))


@documented({200: Refreshed})
async def refresh_statistics(_: Request, context: Context) -> Response:
    """Update the statistics of every queue now; if that takes long, it continues in the background."""
    broker = context.broker
    await broker.statistics.store_activity(broker.long_polls.registry.parked())
    refreshed_queues = await broker.statistics.refresh_within(_REFRESH_S)
    if refreshed_queues is None:
        return Response(200, Refreshed(skipped=True, reason="the statistics are being updated in the background"))
    row = await overviews.overview(context.reports)
    refreshed = Refreshed(
        partition=row.partitions,
        queue=refreshed_queues,
        namespace=row.namespaces,
        task=row.tasks,
        system=1,
        cleanup=await broker.statistics.forget_activity(),
    )
    return Response(200, refreshed)


async def queue_detail(context: Context, name: str, limit: int, offset: int) -> queues.QueueDetail:
    """A queue with a page of its partitions. Raises NotFound."""
    check_name(name, "queue")
    await context.broker.statistics.freshen()
    detail = await queues.detail(context.reports, name, limit, offset)
    if detail is None:
        raise NotFound("Queue not found")
    return detail


def messages(row: queues.Counts) -> Messages:
    return Messages(
        total=row.total,
        pending=row.pending,
        processing=row.processing,
        completed=row.completed,
        failed=row.failed,
        dead_letter=row.dead_letters,
    )


def queue_listed(row: queues.ListedQueue) -> QueueListed:
    return QueueListed(
        id=str(row.id),
        name=row.name,
        namespace=row.namespace,
        task=row.task,
        created_at=iso_millis(row.created_at),
        partitions=row.partitions,
        messages=_depth(row),
        failing=row.failing,
        dead_letters=row.dead_letters,
        leases=row.leases,
        lag_seconds=max(0, round(row.time_lag_s)),
        pushed_per_second=round(row.pushed_per_s, 2),
        popped_per_second=round(row.popped_per_s, 2),
    )


def _partition_described(row: queues.QueuePartition) -> PartitionDescribed:
    return PartitionDescribed(
        id=str(row.partition_id),
        name=row.name,
        created_at=iso_millis(row.created_at),
        stats=messages(row),
        oldest_message=optional_iso_millis(row.oldest_at),
        newest_message=optional_iso_millis(row.newest_at),
    )


def _partition_listed(row: partitions.ListedPartition) -> PartitionListed:
    return PartitionListed(
        id=str(row.partition_id),
        name=row.name,
        queue=row.queue,
        created_at=iso_millis(row.created_at),
        messages=_depth(row),
    )


def _depth(row: queues.ListedQueue | partitions.ListedPartition) -> Depth:
    return Depth(total=row.total, pending=row.pending, processing=row.processing)


def _backlog(row: queues.Label) -> Backlog:
    return Backlog(total=row.total, pending=row.pending)


def _spread(avg: float | None, median: float | None, least: float | None, most: float | None) -> Spread:
    return Spread(avg=float(avg or 0), median=float(median or 0), min=float(least or 0), max=float(most or 0))


ROUTES = (
    Route("GET", "/api/v1/resources/queues", list_queues, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/resources/queues/{queue}", describe_queue, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
    Route("GET", "/api/v1/resources/partitions", list_partitions, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route("GET", "/api/v1/resources/namespaces", list_namespaces, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/resources/tasks", list_tasks, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/resources/overview", overview, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route(
        "DELETE",
        "/api/v1/queues/{queue}/clear",
        clear_queue,
        Role.ADMIN,
        scope=queue_in_path(Verb.ADMINISTER),
        audited=True,
    ),
    Route("POST", "/api/v1/stats/refresh", refresh_statistics, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)),
)
