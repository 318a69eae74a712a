"""GET /api/v1/resources/queues/{queue}/partitions: heads, groups and leases; …/depth: what is not finished"""

from __future__ import annotations

from typing import Any

from queenmq.access.permissions import Verb
from queenmq.core.names import check_name, iso_millis, optional_iso_millis
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.answers.attempts import attempt_shown, consumer_shown
from queenmq.http.answers.groups import PartitionGroup, PartitionHead, PartitionHeads
from queenmq.http.answers.queues import PartitionDepth, QueueDepth
from queenmq.http.decoding import query_name
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error, Page
from queenmq.http.scopes import queue_in_path
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import partitions
from queenmq.reports.attempts import NOTHING, HeadAttempts

_LIMIT = 50
_MOST = 1000
_MOST_GROUPS = 20
_WHICH = (
    Parameter("search", LABEL, "Part of the name."),
    Parameter("partition", LABEL, "Only the partition of this name."),
    Parameter(
        "state",
        {"type": "string", "enum": [*partitions.PARTITION_STATES, ""]},
        "Only those in this state, the worst first, instead of by name: most failed attempts, oldest lease, waiting "
        "longest, most dead letters, most unread. search and partition have no effect then.",
    ),
    Parameter("group", LABEL, "Only the state of this consumer group."),
    *page_parameters(_LIMIT, f"partitions, up to {_MOST}"),
)


@documented({200: PartitionHeads, 404: Error}, query=_WHICH)
async def partition_heads(request: Request, context: Context) -> Response:
    """Partitions of a queue by name: their offsets, and the state of each group. In a long list each has fewer groups,
    and errors are cut."""
    queue = request.params[0]
    check_name(queue, "queue")
    search, partition = query_name(request.query, "search"), query_name(request.query, "partition")
    state: Any = request.query.get("state") or None
    if state is not None and state not in partitions.PARTITION_STATES:
        raise InvalidRequest(f"state must be one of {', '.join(partitions.PARTITION_STATES)}", "state")
    limit, offset = page(request, context.settings, _LIMIT)
    limit = min(limit, _MOST)
    await context.broker.statistics.name_readers()
    found = await partitions.heads(
        context.reports,
        queue,
        search=search,
        partition=partition,
        state=state,
        group=query_name(request.query, "group"),
        limit=limit,
        offset=offset,
        most_groups=min(_MOST_GROUPS, context.settings.limits.max_items),
        max_bytes=context.settings.limits.max_answer_bytes,
    )
    if found is None:
        raise NotFound("Queue not found")
    heads = [_head(one, context.broker.pops_are_paused) for one in found]
    return Response(200, PartitionHeads(queue=queue, partitions=heads, pagination=Page(limit, offset)))


def _head(detail: partitions.PartitionDetail, paused: bool) -> PartitionHead:
    head = detail.head
    return PartitionHead(
        id=str(head.partition_id),
        name=head.name,
        created_at=iso_millis(head.created_at),
        first_offset=head.first_offset,
        last_offset=head.last_offset,
        stored=head.total,
        dead_letters=head.dead_letters,
        oldest_message_at=optional_iso_millis(head.oldest_at),
        last_message_at=optional_iso_millis(head.newest_at),
        group_count=detail.group_count,
        groups=[
            _group(row, detail.attempts.get((row.partition_id, row.name), NOTHING), paused) for row in detail.groups
        ],
    )


def _group(row: partitions.PartitionGroup, failed: HeadAttempts, paused: bool) -> PartitionGroup:
    verdict, leased = row.verdict(paused), bool(row.is_leased)
    return PartitionGroup(
        name=row.name,
        reason=verdict.reason,
        state=verdict.state,
        position=row.read_upto,
        unread=row.unread,
        ready=row.ready if verdict.reason == "deliverable" else 0,
        time_lag_seconds=None if row.time_lag_s is None else round(row.time_lag_s),
        next_transaction_id=row.next_transaction,
        lease_id=str(row.lease_id) if leased else None,
        lease_expires_at=optional_iso_millis(row.lease_expires_at) if leased else None,
        leased=row.leased if leased else 0,
        leased_at=optional_iso_millis(failed.held_since),
        held_by=consumer_shown(failed.holder),
        last_attempt=attempt_shown(failed.last),
        attempts=row.attempts,
        retry_at=optional_iso_millis(row.retry_at) if row.is_paused else None,
        last_consumed_at=optional_iso_millis(row.last_consumed_at),
    )


@documented({200: QueueDepth, 404: Error}, query=(Parameter("group", LABEL, "Of this group."),))
async def queue_depth(request: Request, context: Context) -> Response:
    """How many messages a group has not finished, or without one the group that is furthest behind."""
    queue = request.params[0]
    check_name(queue, "queue")
    group = query_name(request.query, "group")
    found = await partitions.depth(context.reports, queue, group, context.settings.limits.max_items)
    if found is None:
        raise NotFound("Queue not found")
    pending, pending_in = (found.partitions[0].total, found.partitions[0].partitions) if found.partitions else (0, 0)
    depth = QueueDepth(
        queue=queue,
        group=group,
        pending=pending,
        partitions_pending=pending_in,
        conflation=found.conflates,
        effective_pending=pending_in if found.conflates else pending,
        partitions=[PartitionDepth(partition=one.name, pending=one.pending) for one in found.partitions],
    )
    return Response(200, depth)


ROUTES = (
    Route(
        "GET",
        "/api/v1/resources/queues/{queue}/partitions",
        partition_heads,
        Role.READ_ONLY,
        scope=queue_in_path(Verb.READ),
    ),
    Route(
        "GET",
        "/api/v1/resources/queues/{queue}/depth",
        queue_depth,
        Role.READ_ONLY,
        scope=queue_in_path(Verb.READ),
    ),
)
