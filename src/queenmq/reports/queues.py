"""Queues with their figures, namespaces and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.core.options import QueueOptions, read_pop_wait
from queenmq.reports.reading import Query, Reader, Reports

QueueOrder = Literal["pending", "leased", "failing", "dead_letters", "lag"]
QueueFilter = Literal["unread", "due", "leased", "failing", "dead_letters"]


class Counts(Struct, frozen=True):
    """`pending` and `processing` are those of the slowest group, so that they add up to `total` with `completed`."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    dead_letters: int


class ListedQueue(Struct, frozen=True):
    """A queue with the figures of the statistics; `failing` are the groups in partitions whose head has failed,
    `leases` what all groups hold."""

    id: UUID
    name: str
    namespace: str
    task: str
    created_at: datetime
    partitions: int
    total: int
    pending: int
    processing: int
    consumed: int
    failing: int
    dead_letters: int
    leases: int
    time_lag_s: float
    pushed_per_s: float
    popped_per_s: float


class Label(Struct, frozen=True):
    """A namespace or a task, with the sums over its queues."""

    name: str
    queues: int
    partitions: int
    total: int
    pending: int


class Queue(Counts, frozen=True):
    """A queue with its options and the figures of the statistics, unless they have not counted it yet."""

    is_counted: bool
    id: UUID
    name: str
    namespace: str
    task: str
    created_at: datetime
    lease_time_s: int
    max_size: int
    ttl_s: int | None
    retry_limit: int
    retry_delay_ms: int
    dead_letter_queue: bool
    dlq_after_max_retries: bool
    priority: int
    delayed_processing_s: int
    window_buffer_s: int
    retention_s: int
    completed_retention_s: int
    retention_enabled: bool
    encryption_enabled: bool
    max_wait_time_s: int
    archive_before_delete: bool
    set_aside_failed_pushes: bool
    pop_wait: str | None

    def options(self) -> QueueOptions:
        return QueueOptions(
            lease_time=self.lease_time_s,
            max_size=self.max_size,
            ttl=self.ttl_s,
            retry_limit=self.retry_limit,
            retry_delay=self.retry_delay_ms,
            dead_letter_queue=self.dead_letter_queue,
            dlq_after_max_retries=self.dlq_after_max_retries,
            priority=self.priority,
            delayed_processing=self.delayed_processing_s,
            window_buffer=self.window_buffer_s,
            retention_seconds=self.retention_s,
            completed_retention_seconds=self.completed_retention_s,
            retention_enabled=self.retention_enabled,
            encryption_enabled=self.encryption_enabled,
            max_wait_time_seconds=self.max_wait_time_s,
            archive_before_delete=self.archive_before_delete,
            set_aside_failed_pushes=self.set_aside_failed_pushes,
            **read_pop_wait(self.pop_wait),  # type: ignore[arg-type]
        )


class QueuePartition(Counts, frozen=True):
    """A partition with its figures as they are now."""

    partition_id: UUID
    name: str
    created_at: datetime
    consumed: int
    last_activity: datetime | None
    oldest_at: datetime | None
    newest_at: datetime | None


class QueueDetail(Struct, frozen=True):
    """A queue with a page of its partitions. `totals` is about all partitions: as they are now if the page has all of
    them, else as the statistics last counted them."""

    queue: Queue
    partitions: list[QueuePartition]
    totals: Counts


class KnownQueue(Struct, frozen=True):
    """What decides whether a queue delivers, and the time of the database."""

    id: UUID
    lease_time_s: int | None
    retry_limit: int
    delayed_processing_s: int
    window_buffer_s: int
    ttl_s: int | None
    now: datetime


class _PartitionId(Struct, frozen=True):
    id: UUID | None


_LISTED: Final = Query("queues_listed", ListedQueue)
_NAMESPACES: Final = Query("namespaces_listed", Label)
_TASKS: Final = Query("tasks_listed", Label)
_QUEUE: Final = Query("queue_described", Queue)
_PARTITIONS: Final = Query("queue_partitions", QueuePartition)
_KNOWN: Final = Query("explain_queue", KnownQueue)
_PARTITION_IDS: Final = Query("partition_ids", _PartitionId)


async def page(
    reader: Reader,
    *,
    namespace: str | None,
    task: str | None,
    search: str | None,
    limit: int,
    offset: int,
    permitted: list[str] | None = None,
    sort: QueueOrder | None = None,
    only: QueueFilter | None = None,
) -> list[ListedQueue]:
    """Queues by name: of a namespace, of a task, with `search` in the name, fitting patterns and that `only` says, each
    if given. With `sort` the worst first."""
    return await reader.rows(_LISTED, namespace, task, search, limit, offset, permitted, sort, only)


async def namespaces(reader: Reader, limit: int, offset: int, permitted: list[str] | None = None) -> list[Label]:
    return await reader.rows(_NAMESPACES, limit, offset, permitted)


async def tasks(reader: Reader, limit: int, offset: int, permitted: list[str] | None = None) -> list[Label]:
    return await reader.rows(_TASKS, limit, offset, permitted)


async def detail(reports: Reports, name: str, limit: int, offset: int) -> QueueDetail | None:
    """A queue with a page of its partitions by name; None if there is no such queue."""

    async def read(reader: Reader) -> QueueDetail | None:
        queue = await reader.row(_QUEUE, name)
        if queue is None:
            return None
        partitions = await reader.rows(_PARTITIONS, queue.id, limit, offset)
        has_all = offset == 0 and len(partitions) < limit
        return QueueDetail(queue, partitions, _sum(partitions) if has_all or not queue.is_counted else queue)

    return await reports.snapshot(read)


async def find(reader: Reader, name: str, group: str | None = None) -> KnownQueue | None:
    return await reader.row(_KNOWN, name, group)


async def partition_id(reader: Reader, queue: str, partition: str) -> UUID | None:
    """The id of a partition; None if there is no such partition."""
    return (await reader.one(_PARTITION_IDS, [queue], [partition])).id


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(
        total=sum(one.total for one in counts),
        pending=sum(one.pending for one in counts),
        processing=sum(one.processing for one in counts),
        completed=sum(one.completed for one in counts),
        failed=sum(one.failed for one in counts),
        dead_letters=sum(one.dead_letters for one in counts),
    )
