"""The bodies of answers about queues, partitions, groups and messages, as they stand on the wire.

The same rules as in `schemas` hold: nothing has a default, so that the document calls everything required.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.core.explanation import Reason
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
    id: Uuid
    name: str
    namespace: str
    task: str
    created_at: Moment
    partitions: int
    messages: Depth


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
    """How many were looked at, by step; or `skipped` with the reason, and none of them."""

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


class GroupListed(Struct, kw_only=True, rename="camel"):
    """One group in one queue. `members` are the leases that it holds, `maxTimeLag` is in seconds."""

    name: str
    topics: list[str]
    queue_name: str
    members: int
    partitions_with_lag: int
    total_lag: int | None
    max_time_lag: int
    state: Literal["Stable", "Lagging", "Dead"]
    subscription_mode: str | None
    subscription_timestamp: Moment | None
    subscription_created_at: Moment | None


class LaggingPartition(Struct, kw_only=True):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: Uuid
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: Moment
    last_consumed_at: Moment | None


class GroupPartition(Struct, kw_only=True, rename="camel"):
    partition: str
    worker_id: str | None
    last_consumed_at: Moment | None
    total_consumed: int
    offset_lag: int
    time_lag_seconds: int
    lease_active: bool


class GroupInQueue(Struct, kw_only=True):
    partitions: list[GroupPartition]


class BusStatus(Struct, kw_only=True, rename="camel"):
    """How many of the named groups of its partition have finished a message."""

    consumed_by: int
    total_groups: int


Status = Literal["pending", "processing", "completed", "dead_letter"]
ListingType = Literal["bus", "queue", "hybrid", "none"]


class MessageListed(Struct, kw_only=True, rename="camel"):
    id: Uuid
    transaction_id: str
    partition_id: Uuid
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: Status
    queue_status: Status
    bus_status: BusStatus
    trace_id: Uuid | None
    producer_sub: str | None
    queue_priority: int
    created_at: Moment
    lease_expires_at: Moment | None
    payload: Raw | UnsetType = UNSET


class ListingMode(Struct, kw_only=True, rename="camel"):
    has_queue_mode: bool
    bus_groups_count: int
    type: ListingType


class MessagesListed(Struct, kw_only=True):
    messages: list[MessageListed]
    mode: ListingMode


class MessageShort(Struct, kw_only=True, rename="camel"):
    id: Uuid
    transaction_id: str
    partition_id: Uuid
    queue_path: str
    queue: str
    partition: str
    status: Status
    created_at: Moment


class MessageConfig(Struct, kw_only=True, rename="camel"):
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    priority: int


class MessageMode(Struct, kw_only=True, rename="camel"):
    has_queue_mode: bool
    bus_groups_count: int
    consumed_by_groups: int
    type: ListingType


class MessageGroup(Struct, kw_only=True, rename="camel"):
    name: str
    consumed: bool
    lease_expires_at: Moment | None


class MessageDescribed(Struct, kw_only=True, rename="camel"):
    """One message with its payload as it was pushed; null, and `undecryptable`, if the key is not here."""

    id: Uuid
    transaction_id: str
    partition_id: Uuid
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: Status
    payload: Raw
    is_encrypted: bool
    undecryptable: bool
    trace_id: Uuid | None
    producer_sub: str | None
    created_at: Moment
    error_message: str | None
    retry_count: int
    lease_expires_at: Moment | None
    queue_config: MessageConfig
    mode: MessageMode
    consumer_groups: list[MessageGroup]


class MessageDone(Struct, kw_only=True, rename="camel"):
    success: bool
    partition_id: Uuid
    transaction_id: str
    message: str


class Purged(Struct, kw_only=True):
    """One step. `more`: there may be others that failed until `to`; the next step names the same moment."""

    purged: int
    to: Moment
    more: bool


class TraceShown(Struct, kw_only=True):
    id: Uuid
    event_type: str
    data: Raw
    consumer_group: str | None
    worker_id: str | None
    created_at: Moment
    trace_names: list[str]


class TracesShown(Struct, kw_only=True):
    traces: list[TraceShown]


class NamedTrace(TraceShown, kw_only=True):
    transaction_id: str
    partition_id: Uuid
    queue_name: str
    partition_name: str
    message_payload: Raw


class NamedTraces(Struct, kw_only=True):
    """`total` is counted up to a bound."""

    traces: list[NamedTrace]
    total: int
    pagination: Page


class TraceName(Struct, kw_only=True):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: Moment


class TraceNames(Struct, kw_only=True):
    """Everything is counted up to a bound."""

    trace_names: list[TraceName]
    total: int
    pagination: Page


class PartitionSought(Administered, kw_only=True, rename="camel"):
    """`cursorMovedTo` is the offset of the last message that counts as read; null if the group has no place there, or
    is not moved yet (202)."""

    success: bool
    consumer_group: str
    queue_name: str
    partition_name: str
    updated: bool
    cursor_moved_to: int | None


class ExplainedPlace(Struct, kw_only=True, rename="camel"):
    """What a group would get from a partition, and what keeps it from getting it. `queuedPushes` wait in the operation
    queue, `journalledPushes` in the journal of this server."""

    partition: str
    partition_id: Uuid
    reason: Reason
    explanation: str
    advice: str
    until: Moment | None
    position: int
    last_offset: int
    unread: int
    attempts: int
    attempts_left: int
    lease_id: Uuid | None
    lease_expires_at: Moment | None
    leased: int
    next_transaction_id: str | None
    next_message_at: Moment | None
    last_consumed_at: Moment | None
    queued_pushes: int
    journalled_pushes: int


class Session(Struct, kw_only=True):
    """`tokens`: whether they are demanded here."""

    tokens: bool
    subject: str | None
    role: Literal["read-only", "read-write", "admin"]


class PartitionGroup(Struct, kw_only=True, rename="camel"):
    """Where a group stands in a partition: the last offset that it has finished, and the lease that it holds."""

    name: str
    position: int
    unread: int
    lease_id: Uuid | None
    lease_expires_at: Moment | None
    leased: int
    attempts: int
    retry_at: Moment | None
    last_consumed_at: Moment | None


class PartitionHead(Struct, kw_only=True, rename="camel"):
    """A partition from its first stored offset to its last, with its groups, the one that is furthest behind first."""

    id: Uuid
    name: str
    created_at: Moment
    first_offset: int
    last_offset: int
    stored: int
    dead_letters: int
    oldest_message_at: Moment | None
    last_message_at: Moment | None
    group_count: int
    groups: list[PartitionGroup]


class PartitionHeads(Struct, kw_only=True):
    queue: str
    partitions: list[PartitionHead]
    pagination: Page


class PipelineRun(Struct, kw_only=True, rename="camel"):
    """One run of a pipeline job; `lost` is one that has said nothing for five minutes."""

    id: Uuid
    job: str
    queue: str | None
    master: str
    state: Literal["running", "finished", "failed", "lost"]
    started_at: Moment
    seen_at: Moment
    ended_at: Moment | None
    rows: int
    options: Raw
    offsets: Raw
    summary: Raw
    error: str | None


class PipelineRuns(Struct, kw_only=True):
    runs: list[PipelineRun]
    pagination: Page


class LiveBacklog(Struct, kw_only=True, rename="camel"):
    """Of all servers together, as of the last look of the statistics."""

    queues: int
    partitions: int
    total: int
    pending: int
    processing: int
    dead_letters: int
    leases: int
    lag_seconds: float
    lag_messages: int
    pushed_per_second: float
    popped_per_second: float
    acked_per_second: float
    age_seconds: float


class LiveCounts(Struct, kw_only=True, rename="camel"):
    """What the server that answers has done since it started."""

    pushed: int
    popped: int
    acked: int
    failed: int
    dead_lettered: int
    pop_requests: int
    pop_empty: int
    database_errors: int


class LiveServer(Struct, kw_only=True, rename="camel"):
    """How the server that answers is."""

    id: str
    version: str
    uptime_seconds: float
    processor_microseconds: int
    memory_bytes: int
    event_loop_lag_ms: float
    pool_used: float
    pool_waiting: int
    requests_waiting: int


class LiveQueue(Struct, kw_only=True):
    queue: str
    waiters: int


class Snapshot(Struct, kw_only=True, rename="camel"):
    """One beat. `problem` is why there is no backlog; `journal` the messages that wait for the database."""

    at: Moment
    server: LiveServer
    counts: LiveCounts
    waiters: int
    waited_for: list[LiveQueue]
    operations_waiting: int
    journal: int
    servers_alive: int
    servers_dead: int
    push_maintenance: bool
    pop_maintenance: bool
    problem: str | None
    backlog: LiveBacklog | None


class Explained(Struct, kw_only=True, rename="camel"):
    """The reason, a sentence about it and one that says what to do. `until` is when it ends by itself, if it does;
    `waiters` are the long polls of the queue on this server, `deadLetters` what the group has given up. Of the
    partitions those are told that come next."""

    queue: str
    partition: str | None
    consumer_group: str
    groups: list[str]
    reason: Reason
    explanation: str
    advice: str
    until: Moment | None
    paused: bool
    waiters: int
    queued_pushes: int
    journalled_pushes: int
    dead_letters: int
    partitions: list[ExplainedPlace]
