"""Bodies of answers about consumer groups: where they stand in queues and partitions, seeking, and explain."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from queenmq.core.explanation import GroupState, Reason
from queenmq.http.answers.attempts import AttemptShown, ConsumerShown
from queenmq.http.schemas import Administered, Moment, Page, Uuid


class GroupListed(Struct, kw_only=True, rename="camel"):
    """One group in one queue. `unread` is stored and not finished by it; `totalLag` those of them that are due, in
    `partitionsWithLag` partitions, the first of them for `maxTimeLag` seconds. `members` are the leases that it holds;
    `reading`: it holds one, has finished something in the last minute, or a long poll of it waits at this server.
    `failing` partitions have a head that failed; `consumed` counts the deliveries that it has finished, and
    `finishedPerSecond` is their rate, over half a minute or more; null until it has been measured for so long. It
    started at `subscriptionTimestamp`; null: with the first message. `total` entries are on all pages of the
    listing."""

    name: str
    topics: list[str]
    queue_name: str
    members: int
    partitions_with_lag: int
    total_lag: int | None
    max_time_lag: int
    state: Literal["Stable", "Lagging", "Dead"]
    unread: int | None
    reading: bool
    standing: GroupState
    failing: int
    dead_letters: int
    total: int
    consumed: int
    finished_per_second: float | None
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
    unread: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: Moment
    last_consumed_at: Moment | None


class GroupPartition(Struct, kw_only=True, rename="camel"):
    """`unread` is stored and not finished; `offsetLag` those of them that are due, the first for `timeLagSeconds`.
    `reason` and `state` are those of explain; `started`: the group has popped here before."""

    partition: str
    started: bool
    reason: Reason
    state: str
    unread: int
    worker_id: str | None
    last_consumed_at: Moment | None
    total_consumed: int
    offset_lag: int
    time_lag_seconds: int
    lease_active: bool


class GroupInQueue(Struct, kw_only=True):
    partitions: list[GroupPartition]


class PartitionSought(Administered, kw_only=True, rename="camel"):
    """`cursorMovedTo` is the offset of the last message that counts as read; null if the group has no place there, or
    is not moved yet (202)."""

    success: bool
    consumer_group: str
    queue_name: str
    partition_name: str
    updated: bool
    cursor_moved_to: int | None


class SeekEffect(Struct, kw_only=True, rename="camel"):
    """What a seek would do now: `deliveredAgain` messages that the group has finished, `skipped` that it has not.
    `more`: there are more partitions, and this is about the first of them."""

    consumer_group: str
    queue_name: str
    partition_name: str | None
    partitions: int
    delivered_again: int
    skipped: int
    more: bool


class ExplainedPlace(Struct, kw_only=True, rename="camel"):
    """What a group would get from a partition, and what keeps it from getting it. `unread` is stored and not finished,
    `ready` what a pop gets now; `started`: the group has popped here before. `queuedPushes` wait in the operation
    queue, `journalledPushes` in the journal of this server. `heldBy` is the consumer that has the lease, since
    `leasedAt`; `lastAttempt` is how the message at the head failed last."""

    partition: str
    partition_id: Uuid
    started: bool
    reason: Reason
    state: str
    explanation: str
    advice: str
    until: Moment | None
    position: int
    last_offset: int
    unread: int
    ready: int
    attempts: int
    attempts_left: int
    lease_id: Uuid | None
    lease_expires_at: Moment | None
    leased: int
    leased_at: Moment | None
    held_by: ConsumerShown | None
    last_attempt: AttemptShown | None
    next_transaction_id: str | None
    next_message_at: Moment | None
    last_consumed_at: Moment | None
    queued_pushes: int
    journalled_pushes: int


class PartitionGroup(Struct, kw_only=True, rename="camel"):
    """Where a group stands in a partition: the last offset that it has finished, and the lease that it holds. `unread`,
    `ready`, `reason`, `state`, `heldBy` and `lastAttempt` are those of explain; `nextTransactionId` is the message at
    the head. For `timeLagSeconds` something has been due; null if nothing is."""

    name: str
    reason: Reason
    state: str
    position: int
    unread: int
    ready: int
    time_lag_seconds: int | None
    next_transaction_id: str | None
    lease_id: Uuid | None
    lease_expires_at: Moment | None
    leased: int
    leased_at: Moment | None
    held_by: ConsumerShown | None
    attempts: int
    last_attempt: AttemptShown | None
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


class Explained(Struct, kw_only=True, rename="camel"):
    """The reason, in a word (`state`), a sentence about it and one that says what to do. `deliverable`: a pop of this
    group that says nothing else gets something now. `until` is when it ends by itself, if it does;
    `waiters` are the long polls of the queue on this server, `deadLetters` what the group has given up, `passedOver`
    what it was not given because of a filter or conflation. The partitions are those that come next."""

    queue: str
    partition: str | None
    consumer_group: str
    groups: list[str]
    deliverable: bool
    reason: Reason
    state: str
    explanation: str
    advice: str
    until: Moment | None
    paused: bool
    waiters: int
    queued_pushes: int
    journalled_pushes: int
    dead_letters: int
    filter: str | None
    conflation: bool
    passed_over: int
    partitions: list[ExplainedPlace]


class PauseListed(Struct, kw_only=True, rename="camel"):
    """Without a group, of all groups; without a partition, of all partitions. `probeAt` is when the breaker that has
    paused a group lets the next batch through."""

    queue: str
    consumer_group: str | None
    partition: str | None
    paused_at: Moment
    paused_by: str | None
    reason: str | None
    probe_at: Moment | None = None


class PauseMade(PauseListed, kw_only=True):
    """`changed` is false if it was paused before."""

    changed: bool


class Resumed(Struct, kw_only=True, rename="camel"):
    queue: str
    consumer_group: str | None
    partition: str | None
    changed: bool


class FilterShown(Struct, kw_only=True, rename="camel"):
    """`filter` is null if the group gets everything. `passedOver` counts what filters have kept from the group."""

    queue: str
    consumer_group: str
    filter: str | None
    set_at: Moment | None
    set_by: str | None
    passed_over: int


class ConflationShown(Struct, kw_only=True, rename="camel"):
    """`enabled`: the group gets only the newest message of each partition. `passedOver` counts the older ones."""

    queue: str
    consumer_group: str
    enabled: bool
    set_at: Moment | None
    set_by: str | None
    passed_over: int


class PausesListed(Struct):
    pauses: list[PauseListed]
