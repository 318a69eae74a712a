"""Consumer groups: where they stand, how far they are behind, and what a seek would do."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import BEHIND_S
from queenmq.errors import NotFound
from queenmq.reports import queues
from queenmq.reports.places import JudgedPlace
from queenmq.reports.reading import Query, Reader, Reports

GroupOrder = Literal["lag", "unread", "leased", "failing", "dead_letters"]
GroupFilter = Literal["unread", "due", "behind", "leased", "failing", "dead_letters"]


class ListedGroup(Struct, frozen=True):
    """A group in a queue, from the statistics and its subscription. `lives`: the queue exists. Figures are None before
    the statistics have counted the queue; `consumed_ago_s` is None if the group has finished nothing yet. `failing`
    counts partitions whose head has failed, `consumed` the deliveries that it has finished since it exists, and
    `finished_per_s` how many a second lately; None if it has not been measured for half a minute.
    `is_paused`: itself, with its queue or by its breaker. `total` groups fit what was asked for."""

    name: str
    queue: str
    lagging: int
    lag: int | None
    unread: int | None
    leases: int
    time_lag_s: float
    consumed_ago_s: float | None
    mode: str | None
    since: datetime | None
    created_at: datetime | None
    lives: bool
    consumed: int
    finished_per_s: float | None
    failing: int
    dead_letters: int
    is_paused: bool
    total: int


class GroupMetrics(Struct, frozen=True):
    """What Prometheus gets of a group in a queue, of which there are `groups`."""

    queue: str
    namespace: str
    consumer_group: str
    unread: int
    lag: int
    lag_s: float
    leases: int
    consumed: int
    failing: int
    dead_letters: int
    consumers: int
    groups: int


class LaggingPartition(Struct, frozen=True):
    """A partition in which something that a group has not read has been due for `time_lag_s`."""

    consumer_group: str
    queue: str
    partition: str
    partition_id: UUID
    lease_id: UUID | None
    due: int
    unread: int
    oldest_at: datetime
    last_consumed_at: datetime | None
    time_lag_s: float


class GroupPlace(JudgedPlace, frozen=True):
    """A partition that a group reads, or would read."""

    queue: str
    partition: str
    total_consumed: int
    due: int
    time_lag_s: float


class SeekEffect(Struct, frozen=True):
    """What a seek would do: how many messages that the group has finished it delivers `again`, how many that it has
    not it skips. `more`: there are more partitions, and this is about the first of them."""

    partitions: int
    again: int
    skipped: int
    more: bool


class _Position(Struct, frozen=True):
    position: int


_LISTED: Final = Query("groups_listed", ListedGroup)
_METRICS: Final = Query("group_metrics", GroupMetrics)
_LAGGING: Final = Query("groups_lagging", LaggingPartition)
_DESCRIBED: Final = Query("group_described", GroupPlace)
_EFFECT: Final = Query("seek_effect", SeekEffect)
_POSITION: Final = Query("position", _Position)


async def page(
    reader: Reader,
    *,
    search: str | None,
    queue: str | None,
    limit: int,
    offset: int,
    permitted: list[str] | None = None,
    sort: GroupOrder | None = None,
    only: GroupFilter | None = None,
) -> list[ListedGroup]:
    """Groups by name, an entry for each queue: with `search` in the name, of one queue, of queues whose names fit
    patterns, and that `only` says, each if given. With `sort` the worst first."""
    return await reader.rows(_LISTED, limit, offset, search, queue, permitted, sort, only, BEHIND_S)


async def metrics(reader: Reader, most: int) -> list[GroupMetrics]:
    """Of up to `most` groups in queues, those first whose messages have been due longest; by name."""
    return await reader.rows(_METRICS, most) if most else []


async def lagging(reader: Reader, least_s: int, limit: int, *, starts_new: bool) -> list[LaggingPartition]:
    """Partitions in which something unread has been due for `least_s` or longer, the longest first.

    `starts_new`: a group that says nothing starts with new messages.
    """
    return await reader.rows(_LAGGING, least_s, limit, starts_new)


async def places(
    reader: Reader, group: str, limit: int, *, starts_new: bool, permitted: list[str] | None = None
) -> list[GroupPlace]:
    """Where a group stands, by queue; of each first the partitions that have waited longest. `permitted` has patterns
    for the names of the queues, if not all of them may be seen."""
    return await reader.rows(_DESCRIBED, group, limit, starts_new, permitted)


async def seek_effect(
    reports: Reports, group: str, queue: str, partition: str | None, at: datetime | None, most_partitions: int
) -> SeekEffect:
    """What moving a group behind `at`, or to the end if it is None, would do. Raises NotFound."""

    async def read(reader: Reader) -> SeekEffect:
        found = await queues.find(reader, queue)
        if found is None:
            raise NotFound("Queue not found")
        place = None
        if partition is not None:
            place = await queues.partition_id(reader, queue, partition)
            if place is None:
                raise NotFound("Partition not found")
        return await reader.one(_EFFECT, found.id, group, place, at, most_partitions)

    return await reports.snapshot(read)


async def position(reader: Reader, partition_id: UUID, group: str) -> int | None:
    """The offset of the last message that counts as read; None if the group has no place in the partition."""
    found = await reader.row(_POSITION, partition_id, group)
    return None if found is None else found.position
