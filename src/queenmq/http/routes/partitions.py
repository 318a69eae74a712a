"""GET /api/v1/resources/queues/{queue}/partitions: heads, groups and leases"""

from __future__ import annotations

from collections.abc import Iterable

import asyncpg

from queenmq.core.names import check_name, iso_millis
from queenmq.engine.engine import Engine
from queenmq.errors import NotFound
from queenmq.http.decoding import query_name
from queenmq.http.figures import PartitionGroup, PartitionHead, PartitionHeads
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.resources import OFFSET, moment, page
from queenmq.http.schemas import Error, Page

_LIMIT = 50
_MOST_GROUPS = 20
_WHICH = (
    Parameter("search", LABEL, "Part of the name."),
    Parameter("partition", LABEL, "Only the partition of this name."),
    Parameter("limit", COUNT, "Most partitions; cut to the server's limit.", _LIMIT),
    OFFSET,
)


def add_routes(router: Router, engine: Engine) -> None:
    reports = engine.reports

    @documented({200: PartitionHeads, 404: Error}, query=_WHICH)
    async def partition_heads(request: Request) -> Response:
        """Partitions of a queue by name, as they are now: from where to where, and how far each group is."""
        queue = request.params[0]
        check_name(queue, "queue")
        search, partition = query_name(request, "search"), query_name(request, "partition")
        limit, offset = page(request, engine, _LIMIT)
        found = await reports.row("queue_described", queue)
        if found is None:
            raise NotFound("Queue not found")
        rows = await reports.rows("partition_heads", found["id"], search, partition, limit, offset)
        most = min(_MOST_GROUPS, engine.settings.max_items)
        standings = await reports.rows("partition_groups", [row["partition_id"] for row in rows], most)
        by_partition: dict[object, list[asyncpg.Record]] = {}
        for standing in standings:
            by_partition.setdefault(standing["partition_id"], []).append(standing)
        heads = [_head(row, by_partition.get(row["partition_id"], [])) for row in rows]
        return json_response(200, PartitionHeads(queue=queue, partitions=heads, pagination=Page(limit, offset)))

    router.add("GET", "/api/v1/resources/queues/{queue}/partitions", partition_heads, Role.READ_ONLY)


def _head(row: asyncpg.Record, groups: Iterable[asyncpg.Record]) -> PartitionHead:
    listed = list(groups)
    return PartitionHead(
        id=str(row["partition_id"]),
        name=row["name"],
        created_at=iso_millis(row["created_at"]),
        first_offset=row["first_offset"],
        last_offset=row["last_offset"],
        stored=row["total"],
        dead_letters=row["dead_letters"],
        oldest_message_at=moment(row["oldest_at"]),
        last_message_at=moment(row["newest_at"]),
        group_count=listed[0]["groups"] if listed else 0,
        groups=[_group(group) for group in listed],
    )


def _group(row: asyncpg.Record) -> PartitionGroup:
    leased = bool(row["is_leased"])
    return PartitionGroup(
        name=row["name"],
        position=row["position"],
        unread=row["unread"],
        lease_id=str(row["lease_id"]) if leased else None,
        lease_expires_at=moment(row["lease_expires_at"]) if leased else None,
        leased=row["leased"] if leased else 0,
        attempts=row["attempts"],
        retry_at=moment(row["retry_at"]) if row["is_paused"] else None,
        last_consumed_at=moment(row["last_consumed_at"]),
    )
