"""Answers about the operation queue."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from queenmq.core.operations import OperationStatus
from queenmq.http.schemas import Moment, Page, Progress, Uuid


class PushRecorded(Struct, kw_only=True):
    """The result of one message of a deferred push. Ids have both spellings that published clients read."""

    index: int
    status: Literal["queued", "duplicate", "failed", "buffered", "rejected"]
    transaction_id: str
    transaction_id_camel: str = field(name="transactionId")
    message_id: Uuid
    message_id_camel: Uuid = field(name="messageId")
    operation_id: Uuid | UnsetType = field(name="operationId", default=UNSET)
    error: str | UnsetType = UNSET


class Retained(Struct, kw_only=True, rename="camel"):
    """What a run of retention has done."""

    deleted: int
    partitions_dropped: int


class OperationState(Struct, kw_only=True, rename="camel"):
    """An operation. The result of a push has one element per message; `queuePosition` is how many are
    done before it, null unless it waits; `latencySeconds` is from its beginning to its end, or until now.

    After a failure `errorMessage` says why and `nextAttemptAt` when it is tried again; what comes after it in its
    partition waits meanwhile. `blocked`: its content is the cause, and it waits until somebody retries or cancels it.
    A stepped operation has a progress, and as its result the answer that its request would have got.
    """

    id: Uuid
    operation_type: str
    status: OperationStatus
    queue: str | None
    partition: str | None
    priority: int
    items: int
    created_at: Moment | None
    processing_started_at: Moment | None
    processed_at: Moment | None
    retry_count: int
    error_message: str | None
    next_attempt_at: Moment | None
    queue_position: int | None
    latency_seconds: float | None
    estimated_wait: float | None
    progress: Progress | None
    result: Any | None
    subject: str | UnsetType = UNSET
    """Who has begun it, as the token says; not there for pushes."""
    omitted: bool | UnsetType = UNSET
    """True if the result is left out because the listing has enough; ask for the operation by its id."""


class OperationPage(Struct):
    """`total` is how many match, counted up to 100,000."""

    operations: list[OperationState]
    pagination: Page
    total: int


class OperationMoved(Struct, kw_only=True, rename="camel"):
    """`message` says how far a cancelled stepped operation came, or where in its partition a retried push is stored."""

    operation_id: Uuid
    status: OperationStatus
    message: str | None = None


class OperationTotals(Struct, kw_only=True, rename="camel"):
    operation_type: str
    priority: int
    status: OperationStatus
    count: int
    oldest: Moment
    newest: Moment
    avg_latency_seconds: float


class LoadState(Struct, kw_only=True, rename="camel"):
    pool_utilization: float
    pool_waiting: int
    push_wait_seconds: float
    event_loop_delay_seconds: float
    queue_depth: int
    drain_rate: float
    executed: int
    queued: int
    rejected: int


class JournalState(Struct, kw_only=True, rename="camel"):
    operations: int
    messages: int
    bytes: int
    replayed_messages: int
    syncs: int
    damaged: int
    torn_bytes: int
    healthy: bool
    quarantined: int
    stuck: int
    waiting_for_key: int
    replay_failing: bool


class OperationDepth(Struct, kw_only=True, rename="camel"):
    queue: str | None
    partition: str | None
    operations: int
    oldest_seconds: float


class OperationStats(Struct, kw_only=True, rename="camel"):
    """`depth` has the partitions with the most open operations."""

    stats: list[OperationTotals]
    depth: list[OperationDepth]
    system_health: LoadState
    journal: JournalState | None
