"""Consumer groups: where they stand and start, seeking, and forgetting them."""

from __future__ import annotations

import asyncpg
import msgspec

from queenmq.core.names import check_name, iso_millis, parse_timestamp
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.administered import administered
from queenmq.http.decoding import decode, query_count, query_flag, query_name
from queenmq.http.figures import GroupInQueue, GroupListed, GroupPartition, LaggingPartition, PartitionSought
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, FLAG, LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.resources import OFFSET, moment, page
from queenmq.http.schemas import Error, GroupDeleted, SeekBody, SeekRequest, Sought, SubscriptionBody, SubscriptionMoved

_SUBSCRIPTION_TEXTS = {"subscriptionTimestamp": "Missing subscriptionTimestamp in request body"}
_subscription_decoder = msgspec.json.Decoder(SubscriptionBody)
_seek_decoder = msgspec.json.Decoder(SeekBody)
_GROUPS = "/api/v1/consumer-groups/{group}"
_ALL_GROUPS = "/api/v1/consumer-groups"
_MOST_LISTED = 1000
_MOST_PARTITIONS = 500
_LAGGING_S = 300  # from here on a group is called lagging
_LONGEST_S = 10**9
_SECONDS_AN_HOUR = 3600
_LISTED = (
    Parameter("search", LABEL, "Part of the name."),
    Parameter("queue", LABEL, "Only in this queue."),
    Parameter("limit", COUNT, "Most entries; cut to the server's limit.", _MOST_LISTED),
    OFFSET,
)
_PARTITIONS = Parameter("limit", COUNT, "Most partitions; cut to the server's limit.", _MOST_PARTITIONS)
_LEAST_LAG = Parameter("minLagSeconds", COUNT, "Only where the oldest unread message is at least so old.", 3600)
_METADATA = Parameter("deleteMetadata", FLAG, "Forget also where the group was told to start.", True)


def add_routes(router: Router, engine: Engine) -> None:
    administration = engine.administration

    @documented({200: list[GroupListed]}, query=_LISTED)
    async def list_groups(request: Request) -> Response:
        """The groups, one entry for each queue that they read."""
        limit, offset = page(request, engine, _MOST_LISTED)
        search, queue = query_name(request, "search"), query_name(request, "queue")
        await engine.statistics.freshen()
        rows = await engine.reports.rows("groups_listed", limit, offset, search, queue)
        return json_response(200, [_listed(row) for row in rows])

    @documented({200: list[LaggingPartition]}, query=[_LEAST_LAG, _PARTITIONS])
    async def lagging_groups(request: Request) -> Response:
        """Partitions whose oldest unread message is old, the oldest first; of a group in a queue a hundred at most."""
        least = query_count(request, "minLagSeconds", 3600, _LONGEST_S)
        limit, _ = page(request, engine, _MOST_PARTITIONS)
        await engine.statistics.freshen()
        rows = await engine.reports.rows("groups_lagging", least, limit)
        return json_response(200, [_lagging(row) for row in rows])

    @documented({200: dict[str, GroupInQueue]}, query=[_PARTITIONS])
    async def describe_group(request: Request) -> Response:
        """Where a group stands, by queue; first the partitions that have waited longest. Empty if there is none."""
        group = _name(request, 0, "group")
        limit, _ = page(request, engine, _MOST_PARTITIONS)
        described: dict[str, GroupInQueue] = {}
        for row in await engine.reports.rows("group_described", group, limit):
            described.setdefault(row["queue"], GroupInQueue(partitions=[])).partitions.append(_standing(row))
        return json_response(200, described)

    async def forget(request: Request, group: str, queue: str | None) -> GroupDeleted:
        metadata = query_flag(request, "deleteMetadata", True)
        deleted = await administration.delete_group(group, queue, metadata)
        return GroupDeleted(success=True, consumer_group=group, deleted_partitions=deleted, metadata_deleted=metadata)

    @documented({200: GroupDeleted}, query=[_METADATA])
    async def delete_group(request: Request) -> Response:
        """Forget a group everywhere; its next pop starts as a new group."""
        return json_response(200, await forget(request, _name(request, 0, "group"), None))

    @documented({200: GroupDeleted}, query=[_METADATA])
    async def delete_group_in_queue(request: Request) -> Response:
        """Forget a group in one queue."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        forgotten = await forget(request, group, queue)
        forgotten.queue_name = queue
        return json_response(200, forgotten)

    @documented({200: SubscriptionMoved}, body=SubscriptionBody)
    async def resubscribe(request: Request) -> Response:
        """Change where a group starts in partitions that it has not read yet."""
        group = _name(request, 0, "group")
        body = decode(request.body, _subscription_decoder, _SUBSCRIPTION_TEXTS, empty=b"{}")
        since = parse_timestamp(body.subscription_timestamp, "subscriptionTimestamp")
        changed = await administration.resubscribe(group, since)
        moved = SubscriptionMoved(
            success=True, consumer_group=group, new_timestamp=iso_millis(since), rows_updated=changed
        )
        return json_response(200, moved)

    @documented({200: Sought, 202: Sought}, body=SeekRequest)
    async def seek(request: Request) -> Response:
        """Move a group in a queue: to the end, or behind a moment."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        body = decode(request.body, _seek_decoder, empty=b"{}")
        if not body.to_end and body.timestamp is None:
            raise InvalidRequest("Must specify either 'toEnd': true or 'timestamp'", "timestamp")
        given = None if body.timestamp is None else parse_timestamp(body.timestamp, "timestamp")
        at = None if body.to_end else given
        standing = await administration.seek(group, queue, None, at)
        sought = Sought(
            success=True,
            consumer_group=group,
            queue_name=queue,
            seek_to_end=at is None,
            target_timestamp=None if at is None else iso_millis(at),
            partitions_updated=standing.done,
        )
        return administered(standing, sought)

    @documented({200: PartitionSought, 202: PartitionSought, 404: Error}, body=SeekBody, body_required=False)
    async def seek_partition(request: Request) -> Response:
        """Move a group in one partition: behind a moment, or to the end if none is given."""
        group, queue, partition = (_name(request, n, field) for n, field in enumerate(("group", "queue", "partition")))
        body = decode(request.body, _seek_decoder, empty=b"{}")
        at = None if body.timestamp is None else parse_timestamp(body.timestamp, "timestamp")
        [partition_id] = await engine.reports.rows("partition_ids", [queue], [partition])
        if partition_id["id"] is None:
            raise NotFound("Partition not found")
        standing = await administration.seek(group, queue, partition, None if body.to_end else at)
        stands = None
        if standing.status == "completed":
            stands = await engine.reports.row("position", partition_id["id"], group)
        sought = PartitionSought(
            success=True,
            consumer_group=group,
            queue_name=queue,
            partition_name=partition,
            updated=standing.done > 0,
            cursor_moved_to=None if stands is None else stands["position"],
        )
        return administered(standing, sought)

    router.add("POST", _GROUPS + "/queues/{queue}/partitions/{partition}/seek", seek_partition, Role.READ_WRITE)
    router.add("GET", _ALL_GROUPS, list_groups, Role.READ_ONLY)
    router.add("GET", _ALL_GROUPS + "/lagging", lagging_groups, Role.READ_ONLY)
    router.add("GET", _GROUPS, describe_group, Role.READ_ONLY)
    router.add("DELETE", _GROUPS, delete_group, Role.ADMIN)
    router.add("DELETE", _GROUPS + "/queues/{queue}", delete_group_in_queue, Role.ADMIN)
    router.add("POST", _GROUPS + "/subscription", resubscribe, Role.READ_WRITE)
    router.add("POST", _GROUPS + "/queues/{queue}/seek", seek, Role.READ_WRITE)


def _name(request: Request, position: int, field: str) -> str:
    name = request.params[position]
    check_name(name, field)
    return name


def _listed(row: asyncpg.Record) -> GroupListed:
    seconds = round(row["time_lag_s"])
    state = "Dead" if not row["lives"] else "Lagging" if seconds > _LAGGING_S else "Stable"
    return GroupListed(
        name=row["name"],
        topics=[row["queue"]],
        queue_name=row["queue"],
        members=row["leases"],
        partitions_with_lag=row["lagging"],
        total_lag=row["lag"],
        max_time_lag=seconds,
        state=state,  # type: ignore[arg-type]
        subscription_mode=row["mode"],
        subscription_timestamp=moment(row["since"]),
        subscription_created_at=moment(row["created_at"]),
    )


def _lagging(row: asyncpg.Record) -> LaggingPartition:
    return LaggingPartition(
        consumer_group=row["consumer_group"],
        queue_name=row["queue"],
        partition_name=row["partition"],
        partition_id=str(row["partition_id"]),
        worker_id=_holder(row),
        offset_lag=row["unread"],
        time_lag_seconds=round(row["time_lag_s"]),
        lag_hours=round(row["time_lag_s"] / _SECONDS_AN_HOUR, 2),
        oldest_unconsumed_at=iso_millis(row["oldest_at"]),
        last_consumed_at=moment(row["last_consumed_at"]),
    )


def _standing(row: asyncpg.Record) -> GroupPartition:
    return GroupPartition(
        partition=row["partition"],
        worker_id=_holder(row),
        last_consumed_at=moment(row["last_consumed_at"]),
        total_consumed=row["total_consumed"],
        offset_lag=row["unread"],
        time_lag_seconds=round(row["time_lag_s"]),
        lease_active=bool(row["leased"]),
    )


def _holder(row: asyncpg.Record) -> str | None:
    """Who holds the partition: Queen knows consumers by their leases."""
    return None if row["lease_id"] is None else str(row["lease_id"])
