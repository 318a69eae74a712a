"""Bodies of answers about queues, partitions, namespaces, tasks and everything together."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from queenmq.core.options import QueueOptions
from queenmq.http.schemas import Administered, Moment, Page, Uuid


class Messages(Struct, kw_only=True, rename="camel"):
    """`pending` and `processing` are those of the slowest group, so that they add up to `total` with `completed`."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    dead_letter: int


class Depth(Struct, kw_only=True):
    total: int
    pending: int
    processing: int


class Backlog(Struct, kw_only=True):
    total: int
    pending: int


class QueueListed(Struct, kw_only=True, rename="camel"):
    """`failing` counts the groups in partitions whose head has failed, `leases` what all groups hold; `lagSeconds` is
    how long the oldest unread message has been due. Rates are of the last whole minute."""

    id: Uuid
    name: str
    namespace: str
    task: str
    created_at: Moment
    partitions: int
    messages: Depth
    failing: int
    dead_letters: int
    leases: int
    lag_seconds: int
    pushed_per_second: float
    popped_per_second: float


class QueuesListed(Struct, kw_only=True):
    queues: list[QueueListed]


class QueuesPage(Struct, kw_only=True):
    queues: list[QueueListed]
    pagination: Page


class PartitionDescribed(Struct, kw_only=True, rename="camel"):
    id: Uuid
    name: str
    created_at: Moment
    stats: Messages
    oldest_message: Moment | None
    newest_message: Moment | None


class QueueDescribed(Struct, kw_only=True, rename="camel"):
    """The partitions by name, as many as `limit` allows; `totals` is about all of them."""

    id: Uuid
    name: str
    namespace: str
    task: str
    created_at: Moment
    partitions: list[PartitionDescribed]
    totals: Messages


class PartitionListed(Struct, kw_only=True, rename="camel"):
    id: Uuid
    name: str
    queue: str
    created_at: Moment
    messages: Depth


class PartitionsListed(Struct, kw_only=True):
    partitions: list[PartitionListed]


class NamespaceListed(Struct, kw_only=True):
    namespace: str
    queues: int
    partitions: int
    messages: Backlog


class NamespacesListed(Struct, kw_only=True):
    namespaces: list[NamespaceListed]


class TaskListed(Struct, kw_only=True):
    task: str
    queues: int
    partitions: int
    messages: Backlog


class TasksListed(Struct, kw_only=True):
    tasks: list[TaskListed]


class Spread(Struct, kw_only=True):
    avg: float
    median: float
    min: float
    max: float


class Lag(Struct, kw_only=True):
    """Over the groups that have something unread: seconds, and messages."""

    time: Spread
    offset: Spread


class Throughput(Struct, kw_only=True, rename="camel"):
    ingested_per_second: float
    processed_per_second: float


class Overview(Struct, kw_only=True, rename="camel"):
    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: Messages
    lag: Lag
    throughput: Throughput
    timestamp: Moment
    stats_age: float


class Cleared(Administered, kw_only=True):
    cleared: bool
    queue: str
    partition: str | None
    deleted: int


class Refreshed(Struct, kw_only=True):
    """How many were updated, by step; or `skipped` with the reason, and nothing else."""

    partition: int | UnsetType = UNSET
    queue: int | UnsetType = UNSET
    namespace: int | UnsetType = UNSET
    task: int | UnsetType = UNSET
    system: int | UnsetType = UNSET
    cleanup: int | UnsetType = UNSET
    skipped: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class QueueConfig(Struct, kw_only=True, rename="camel"):
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    max_queue_size: int
    dead_letter_queue: bool


class QueueStatus(Struct, kw_only=True, rename="camel"):
    """`options` are all of them as configure takes them: `ttl` is null where none is enforced."""

    id: Uuid
    name: str
    namespace: str
    task: str
    priority: int
    created_at: Moment
    config: QueueConfig
    options: QueueOptions


class Cursor(Struct, kw_only=True, rename="camel"):
    """Of all groups together. Batches are not counted, so they are null."""

    total_consumed: int
    batches_consumed: int | None


class PartitionStatus(Struct, kw_only=True, rename="camel"):
    id: Uuid
    name: str
    created_at: Moment
    messages: Messages
    stats: Messages
    cursor: Cursor
    last_activity: Moment | None
    oldest_message: Moment | None
    newest_message: Moment | None


class Totals(Messages, kw_only=True, rename="camel"):
    messages: Messages


class QueueStatusDetail(Struct, kw_only=True):
    queue: QueueStatus
    partitions: list[PartitionStatus]
    totals: Totals


class PartitionDepth(Struct, kw_only=True):
    partition: str
    pending: int


class QueueDepth(Struct, kw_only=True, rename="camel"):
    """`pending` counts messages that are not finished, in `partitionsPending` partitions. `effectivePending` is how
    many of them are left to deliver: one for each partition if the group conflates. The partitions are those with
    most."""

    queue: str
    group: str | None
    pending: int
    partitions_pending: int
    conflation: bool
    effective_pending: int
    partitions: list[PartitionDepth]
