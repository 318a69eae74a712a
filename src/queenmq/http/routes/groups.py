"""Consumer groups: where they stand and start, seeking, and forgetting them."""

from __future__ import annotations

from typing import get_args

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.config import Settings
from queenmq.core.explanation import BEHIND_S, READING_S, group_state
from queenmq.core.names import check_name, iso_millis, optional_iso_millis, parse_start, parse_timestamp
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.administered import administered, partition_sought, sought
from queenmq.http.answers.attempts import ConsumersListed, consumer_listed
from queenmq.http.answers.groups import (
    GroupInQueue,
    GroupListed,
    GroupPartition,
    LaggingPartition,
    PartitionSought,
    SeekEffect,
)
from queenmq.http.decoding import decode, query_count, query_flag, query_group, query_name, query_time, query_word
from queenmq.http.openapi import COUNT, FLAG, LABEL, MOMENT, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.requests import SeekBody, SeekRequest, SubscriptionBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error, GroupDeleted, Sought, SubscriptionMoved
from queenmq.http.scopes import all_queues, group_in_path, listed_or_in_query, listing, queue_in_path, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import attempts, groups, queues
from queenmq.storage.failures import after_commit

_SUBSCRIPTION_TEXTS = {"subscriptionTimestamp": "Missing subscriptionTimestamp in request body"}
_subscription_decoder = msgspec.json.Decoder(SubscriptionBody)
_seek_decoder = msgspec.json.Decoder(SeekBody)
_GROUPS = "/api/v1/consumer-groups/{group}"
_ALL_GROUPS = "/api/v1/consumer-groups"
_MOST_LISTED = 1000
_MOST_PARTITIONS = 500
_LONGEST_S = 10**9
_SECONDS_AN_HOUR = 3600
_ORDERS = get_args(groups.GroupOrder)
_FILTERS = get_args(groups.GroupFilter)
_LISTED = (
    Parameter("search", LABEL, "Part of the name."),
    Parameter("queue", LABEL, "Only in this queue."),
    Parameter("sort", {"type": "string", "enum": [*_ORDERS, ""]}, "The worst first, instead of by name."),
    Parameter("only", {"type": "string", "enum": [*_FILTERS, ""]}, "Only groups of which this is true."),
    *page_parameters(_MOST_LISTED),
)
_PARTITIONS = Parameter("limit", COUNT, "Most partitions; cut to the server's limit.", _MOST_PARTITIONS)
_LEAST_LAG = Parameter("minLagSeconds", COUNT, "Only where the first unread message has been due for so long.", 3600)
_MOST_SOUGHT = 10_000  # partitions that are read to preview a seek: less than a second
_TARGET = (
    Parameter("toEnd", FLAG, "To the end; so it is without a timestamp.", False),
    Parameter("timestamp", MOMENT, "Behind this moment."),
    Parameter("partition", LABEL, "Only in this partition."),
)
_READERS_S = 120  # longer than a long poll
_CONSUMERS = (
    Parameter("consumerGroup", LABEL, "Only of this group."),
    Parameter("withinSeconds", COUNT, "Only those that have popped within so many seconds.", _READERS_S),
    Parameter("limit", COUNT, "Most consumers; cut to the server's limit.", _MOST_PARTITIONS),
)
_METADATA = Parameter("deleteMetadata", FLAG, "Also delete where the group starts.", True)


@documented({200: list[GroupListed]}, query=_LISTED)
async def list_groups(request: Request, context: Context) -> Response:
    """The groups, one entry for each queue that they read."""
    broker = context.broker
    limit, offset = page(request, context.settings, _MOST_LISTED)
    search, queue = query_name(request.query, "search"), query_name(request.query, "queue")
    await broker.statistics.freshen()
    rows = await groups.page(
        context.reports,
        search=search,
        queue=queue,
        limit=limit,
        offset=offset,
        permitted=visible(request),
        sort=query_word(request.query, "sort", _ORDERS),
        only=query_word(request.query, "only", _FILTERS),
    )
    polled = _polled(broker)
    return Response(200, [_listed(row, polled, broker.pops_are_paused) for row in rows])


@documented({200: ConsumersListed, 404: Error}, query=_CONSUMERS)
async def list_consumers(request: Request, context: Context) -> Response:
    """Who reads a queue: the consumers that have popped not long ago, with the leases of each."""
    queue = _name(request, 0, "queue")
    group = query_group(request.query)
    within_s = query_count(request.query, "withinSeconds", _READERS_S, _LONGEST_S)
    limit, _ = page(request, context.settings, _MOST_PARTITIONS)
    await context.broker.statistics.name_readers()
    found = await attempts.consumers(context.reports, queue, group, within_s, limit)
    if found is None:
        raise NotFound("Queue not found")
    return Response(200, ConsumersListed(queue=queue, consumers=[consumer_listed(one) for one in found]))


@documented({200: list[LaggingPartition]}, query=[_LEAST_LAG, _PARTITIONS])
async def lagging_groups(request: Request, context: Context) -> Response:
    """Partitions whose unread messages have been due longest; at most a hundred for each group."""
    least = query_count(request.query, "minLagSeconds", 3600, _LONGEST_S)
    limit, _ = page(request, context.settings, _MOST_PARTITIONS)
    await context.broker.statistics.freshen()
    rows = await groups.lagging(context.reports, least, limit, starts_new=starts_new(context.settings))
    return Response(200, [_lagging(row) for row in rows])


@documented({200: dict[str, GroupInQueue]}, query=[_PARTITIONS])
async def describe_group(request: Request, context: Context) -> Response:
    """Positions of a group by queue, the longest waiting partitions first. Empty if the group does not exist."""
    group = _name(request, 0, "group")
    limit, _ = page(request, context.settings, _MOST_PARTITIONS)
    described: dict[str, GroupInQueue] = {}
    for row in await groups.places(
        context.reports, group, limit, starts_new=starts_new(context.settings), permitted=visible(request)
    ):
        place = _partition(row, context.broker.pops_are_paused)
        described.setdefault(row.queue, GroupInQueue(partitions=[])).partitions.append(place)
    return Response(200, described)


@documented({200: GroupDeleted}, query=[_METADATA])
async def delete_group(request: Request, context: Context) -> Response:
    """Delete the positions of a group in all queues; its next pop starts as a new group."""
    return Response(200, await _forget(request, context.broker, _name(request, 0, "group"), None))


@documented({200: GroupDeleted}, query=[_METADATA])
async def delete_group_in_queue(request: Request, context: Context) -> Response:
    """Delete the positions of a group in one queue."""
    group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
    forgotten = await _forget(request, context.broker, group, queue)
    forgotten.queue_name = queue
    return Response(200, forgotten)


@documented({200: SubscriptionMoved}, body=SubscriptionBody)
async def resubscribe(request: Request, context: Context) -> Response:
    """Change where a group starts in partitions that it has not read yet."""
    group = _name(request, 0, "group")
    body = decode(request.body, _subscription_decoder, _SUBSCRIPTION_TEXTS, empty=b"{}")
    since = parse_timestamp(body.subscription_timestamp, "subscriptionTimestamp")
    changed = await context.broker.resubscribe(group, since)
    moved = SubscriptionMoved(success=True, consumer_group=group, new_timestamp=iso_millis(since), rows_updated=changed)
    return Response(200, moved)


@documented({200: Sought, 202: Sought}, body=SeekRequest)
async def seek(request: Request, context: Context) -> Response:
    """Move a group in a queue to the end, or to a time."""
    group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
    body = decode(request.body, _seek_decoder, empty=b"{}")
    if not body.to_end and body.timestamp is None:
        raise InvalidRequest("Must specify either 'toEnd': true or 'timestamp'", "timestamp")
    given = None if body.timestamp is None else parse_timestamp(body.timestamp, "timestamp")
    at = None if body.to_end else given
    progress = await context.broker.seek(group, queue, None, at)
    return administered(progress, sought(group, queue, at, progress.done))


@documented({200: SeekEffect, 404: Error}, query=_TARGET)
async def seek_effect(request: Request, context: Context) -> Response:
    """The effect of a seek, without doing it: how many messages it would deliver again, and how many it would skip."""
    group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
    partition, at = query_name(request.query, "partition"), query_time(request.query, "timestamp")
    target = None if query_flag(request.query, "toEnd") else at
    row = await groups.seek_effect(context.reports, group, queue, partition, target, _MOST_SOUGHT)
    effect = SeekEffect(
        consumer_group=group,
        queue_name=queue,
        partition_name=partition,
        partitions=row.partitions,
        delivered_again=row.again,
        skipped=row.skipped,
        more=row.more,
    )
    return Response(200, effect)


@documented({200: PartitionSought, 202: PartitionSought, 404: Error}, body=SeekBody, body_required=False)
async def seek_partition(request: Request, context: Context) -> Response:
    """Move a group in one partition to a time, or to the end if none is given."""
    broker = context.broker
    group, queue, partition = (_name(request, n, field) for n, field in enumerate(("group", "queue", "partition")))
    body = decode(request.body, _seek_decoder, empty=b"{}")
    at = None if body.timestamp is None else parse_timestamp(body.timestamp, "timestamp")
    partition_id = await queues.partition_id(context.reports, queue, partition)
    if partition_id is None:
        raise NotFound("Partition not found")
    progress = await broker.seek(group, queue, partition, None if body.to_end else at)
    position = None
    if progress.status == "completed":
        with after_commit():
            position = await groups.position(context.reports, partition_id, group)
    return administered(
        progress, partition_sought(group, queue, partition, updated=progress.done > 0, position=position)
    )


async def _forget(request: Request, broker: Broker, group: str, queue: str | None) -> GroupDeleted:
    metadata = query_flag(request.query, "deleteMetadata", True)
    deleted = await broker.delete_group(group, queue, metadata)
    return GroupDeleted(success=True, consumer_group=group, deleted_partitions=deleted, metadata_deleted=metadata)


def starts_new(settings: Settings) -> bool:
    """Whether a group that does not say where it starts gets only new messages."""
    return parse_start("", None, None, settings.pop.default_subscription_mode).mode == "new"


def _name(request: Request, position: int, field: str) -> str:
    name = request.params[position]
    check_name(name, field)
    return name


def _polled(broker: Broker) -> set[tuple[str, object]]:
    """The groups whose long polls wait here, with their queues."""
    places = (group.key for group in broker.long_polls.registry.groups())
    return {(place.queue, place.group) for place in places}


def _listed(row: groups.ListedGroup, polled: set[tuple[str, object]], switched_off: bool) -> GroupListed:
    seconds = round(row.time_lag_s)
    state = "Dead" if not row.lives else "Lagging" if seconds > BEHIND_S else "Stable"
    ago = row.consumed_ago_s
    paused = row.is_paused or switched_off
    reads = row.leases > 0 or (ago is not None and ago < READING_S) or (row.queue, row.name) in polled
    return GroupListed(
        name=row.name,
        topics=[row.queue],
        queue_name=row.queue,
        members=row.leases,
        partitions_with_lag=row.lagging,
        total_lag=row.lag,
        max_time_lag=seconds,
        state=state,  # type: ignore[arg-type]
        unread=row.unread,
        reading=reads,
        standing=group_state(row.lives, paused, row.unread or 0, row.lag or 0, seconds, reads),
        failing=row.failing,
        dead_letters=row.dead_letters,
        total=row.total,
        consumed=row.consumed,
        finished_per_second=row.finished_per_s,
        subscription_mode=row.mode,
        subscription_timestamp=optional_iso_millis(row.since),
        subscription_created_at=optional_iso_millis(row.created_at),
    )


def _lagging(row: groups.LaggingPartition) -> LaggingPartition:
    return LaggingPartition(
        consumer_group=row.consumer_group,
        queue_name=row.queue,
        partition_name=row.partition,
        partition_id=str(row.partition_id),
        worker_id=_holder(row),
        offset_lag=row.due,
        unread=row.unread,
        time_lag_seconds=round(row.time_lag_s),
        lag_hours=round(row.time_lag_s / _SECONDS_AN_HOUR, 2),
        oldest_unconsumed_at=iso_millis(row.oldest_at),
        last_consumed_at=optional_iso_millis(row.last_consumed_at),
    )


def _partition(row: groups.GroupPlace, paused: bool) -> GroupPartition:
    verdict = row.verdict(paused)
    return GroupPartition(
        partition=row.partition,
        started=row.started,
        reason=verdict.reason,
        state=verdict.state,
        unread=row.unread,
        worker_id=_holder(row),
        last_consumed_at=optional_iso_millis(row.last_consumed_at),
        total_consumed=row.total_consumed,
        offset_lag=row.due,
        time_lag_seconds=round(row.time_lag_s),
        lease_active=bool(row.is_leased),
    )


def _holder(row: groups.LaggingPartition | groups.GroupPlace) -> str | None:
    """Who holds the partition: Queen knows consumers by their leases."""
    return None if row.lease_id is None else str(row.lease_id)


ROUTES = (
    Route(
        "POST",
        _GROUPS + "/queues/{queue}/partitions/{partition}/seek",
        seek_partition,
        Role.READ_WRITE,
        scope=group_in_path(Verb.ACK),
        audited=True,
    ),
    Route("GET", _ALL_GROUPS, list_groups, Role.READ_ONLY, scope=listed_or_in_query(Verb.READ)),
    Route("GET", _ALL_GROUPS + "/lagging", lagging_groups, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/api/v1/queues/{queue}/consumers", list_consumers, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
    Route("GET", _GROUPS, describe_group, Role.READ_ONLY, scope=listing),
    Route("DELETE", _GROUPS, delete_group, Role.ADMIN, scope=all_queues(Verb.ADMINISTER, of_group=True), audited=True),
    Route(
        "DELETE",
        _GROUPS + "/queues/{queue}",
        delete_group_in_queue,
        Role.ADMIN,
        scope=group_in_path(Verb.ADMINISTER),
        audited=True,
    ),
    Route(
        "POST",
        _GROUPS + "/subscription",
        resubscribe,
        Role.READ_WRITE,
        scope=all_queues(Verb.ACK, of_group=True),
        audited=True,
    ),
    Route("POST", _GROUPS + "/queues/{queue}/seek", seek, Role.READ_WRITE, scope=group_in_path(Verb.ACK), audited=True),
    Route("GET", _GROUPS + "/queues/{queue}/seek", seek_effect, Role.READ_ONLY, scope=group_in_path(Verb.READ)),
)
