"""Partitions as they are now: from where to where, and how far each group is."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, get_args
from uuid import UUID

from msgspec import Struct

from queenmq.reports import attempts, queues, selection
from queenmq.reports.attempts import HeadAttempts
from queenmq.reports.places import JudgedPlace
from queenmq.reports.reading import Query, Reader, Reports

PartitionState = Literal["failing", "leased", "waiting", "dead_letters", "unread"]
PARTITION_STATES: Final = get_args(PartitionState)
_GROUP_BYTES: Final = 2000  # of one in an answer, with long names and without the error


class ListedPartition(Struct, frozen=True):
    partition_id: UUID
    name: str
    queue: str
    created_at: datetime
    total: int
    pending: int
    processing: int


class PartitionHead(Struct, frozen=True):
    """A partition from its first stored offset to its last."""

    partition_id: UUID
    name: str
    created_at: datetime
    first_offset: int
    last_offset: int
    total: int
    dead_letters: int
    oldest_at: datetime | None
    newest_at: datetime | None


class PartitionGroup(JudgedPlace, frozen=True):
    """A group in a partition, which has `groups` of them. `time_lag_s` is None if nothing is due."""

    partition_id: UUID
    name: str
    groups: int
    is_paused: bool | None
    time_lag_s: float | None

    @property
    def attempted(self) -> tuple[UUID, str, UUID | None, int | None]:
        """What `attempts.of_heads` is asked."""
        return self.partition_id, self.name, self.lease_id if self.is_leased else None, self.next_offset


class PartitionDepth(Struct, frozen=True):
    """What is not finished of a partition; `total` and `partitions` are of all that have something."""

    name: str
    pending: int
    total: int
    partitions: int


class QueueDepth(Struct, frozen=True):
    """Those partitions that have most."""

    partitions: list[PartitionDepth]
    conflates: bool


class PartitionDetail(Struct, frozen=True):
    """A partition and its groups, the one that is furthest behind first."""

    head: PartitionHead
    groups: list[PartitionGroup]
    group_count: int
    attempts: dict[attempts.Head, HeadAttempts]


class FailingHeads(Struct, frozen=True):
    """How many partitions of a queue have a head that failed for a group, and how often it did at most."""

    queue: str
    consumer_group: str
    partitions: int
    attempts: int


class _Id(Struct, frozen=True):
    partition_id: UUID


_IN_STATE: Final = Query("partitions_in_state", _Id)
_FAILING: Final = Query("failing_heads", FailingHeads)
_LISTED: Final = Query("partitions_listed", ListedPartition)
_HEADS: Final = Query("partition_heads", PartitionHead)
_GROUPS: Final = Query("partition_groups", PartitionGroup)


async def page(reader: Reader, queue: str | None, limit: int, offset: int) -> list[ListedPartition]:
    """Partitions of one queue by name, or of all queues."""
    return await reader.rows(_LISTED, queue, limit, offset)


async def heads(
    reports: Reports,
    queue: str,
    *,
    search: str | None,
    partition: str | None,
    state: PartitionState | None = None,
    group: str | None = None,
    limit: int,
    offset: int,
    most_groups: int,
    max_bytes: int,
) -> list[PartitionDetail] | None:
    """Partitions of a queue by name: with `search` in the name, or only `partition`, if given. With `state`, those that
    are in it instead, the worst first. With `group`, the state of that group only. None if there is no such queue. If
    there are many, each has fewer groups, and errors are cut, so that each of the two has up to `max_bytes`."""

    async def read(reader: Reader) -> list[PartitionDetail] | None:
        found = await queues.find(reader, queue)
        if found is None:
            return None
        chosen = None
        if state is not None:
            chosen = [row.partition_id for row in await reader.rows(_IN_STATE, found.id, state, limit, offset, group)]
        if chosen is None:
            rows = await reader.rows(_HEADS, found.id, search, partition, limit, offset, None)
        else:
            rows = await reader.rows(_HEADS, found.id, None, None, 0, 0, chosen)
            places = {partition_id: place for place, partition_id in enumerate(chosen)}
            rows.sort(key=lambda row: places[row.partition_id])
        groups: dict[UUID, list[PartitionGroup]] = {row.partition_id: [] for row in rows}
        fitting = max_bytes // _GROUP_BYTES // max(1, len(rows))
        most = max(1, min(most_groups, fitting))
        for one in await reader.rows(_GROUPS, list(groups), most, group, state):
            groups[one.partition_id].append(one)
        asked = [one.attempted for of_partition in groups.values() for one in of_partition]
        failed = await attempts.of_heads(reader, asked, max_bytes)
        return [_detail(row, groups[row.partition_id], failed) for row in rows]

    return await reports.snapshot(read)


async def failing_heads(reader: Reader, queue: str | None, limit: int) -> list[FailingHeads]:
    """Groups with partitions whose head has failed, the most first: of a queue, or of all."""
    return await reader.rows(_FAILING, queue, limit)


def _detail(
    head: PartitionHead, groups: list[PartitionGroup], failed: dict[attempts.Head, HeadAttempts]
) -> PartitionDetail:
    return PartitionDetail(head, groups, groups[0].groups if groups else 0, failed)


_DEPTH: Final = Query("queue_depth", PartitionDepth)


async def depth(reports: Reports, queue: str, group: str | None, limit: int) -> QueueDepth | None:
    """What a group, or the one that is furthest behind, has not finished; None if there is no such queue."""

    async def read(reader: Reader) -> QueueDepth | None:
        known = await queues.find(reader, queue)
        if known is None:
            return None
        conflates = group is not None and (await selection.of_group(reader, known.id, group)).conflates
        return QueueDepth(await reader.rows(_DEPTH, known.id, group, limit), conflates)

    return await reports.snapshot(read)
