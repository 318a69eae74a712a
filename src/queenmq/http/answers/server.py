"""Bodies of answers about the servers: health, load, maintenance, operations, the cluster, the live snapshot, the
session, the runs of pipeline jobs and declared pipelines."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from queenmq.access.permissions import Grant
from queenmq.core.operations import OperationStatus
from queenmq.http.schemas import Moment, Page, Progress, Uuid


class Session(Struct, kw_only=True):
    """`tokens`: whether they are demanded here. `grants`: what the token is restricted to, if it is."""

    tokens: bool
    subject: str | None
    role: Literal["read-only", "read-write", "admin"]
    grants: tuple[Grant, ...] | UnsetType = UNSET


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


class PipelineShown(Struct, kw_only=True, rename="camel"):
    """A declared pipeline. `unsupervised`: it shall run, and no supervisor has it. `waiting`: it has failed and is
    started again at `nextStartAt`; `failed`: only after somebody has changed or started it.

    `lag` is the number of stored messages that are not done, null if that is not known; everything that was pushed more
    than `lagSeconds` ago is done. `messagesPerSecond` is of the last minute.
    """

    name: str
    kind: str
    version: int
    running_version: int | None
    wanted: Literal["running", "stopped"]
    state: Literal["starting", "running", "draining", "waiting", "failed", "stopped", "unsupervised"]
    supervisor: str | None
    reads: list[str] | None
    """The queues that it reads; null: all."""
    writes: list[str]
    lag: int | None
    lag_seconds: float | None
    rows: int
    batches: int
    messages_per_second: float | None
    starts: int
    failures: int
    """Starts that have failed in a row."""
    started_at: Moment | None
    seen_at: Moment | None
    next_start_at: Moment | None
    error: str | None
    """The last one, also when it runs again."""
    error_at: Moment | None
    changed_at: Moment
    last_batch: PipelineBatch | None


class PipelineBatch(Struct, kw_only=True, rename="camel"):
    """A micro-batch of a stream, or a round of a job that does its work in rounds."""

    ended_at: Moment
    number: int
    query: str | UnsetType = UNSET
    rows: int
    seconds: float


class PipelineVersion(Struct, kw_only=True, rename="camel"):
    """`stateNumber` grows when the state is given up."""

    version: int
    state_number: int
    applied_at: Moment
    declaration: Raw


class PipelineWhole(Struct, kw_only=True, rename="camel"):
    pipeline: PipelineShown
    declaration: Raw
    batches: list[PipelineBatch]
    versions: list[PipelineVersion]


class PipelinesListed(Struct, kw_only=True):
    pipelines: list[PipelineShown]
    pagination: Page


class LiveBacklog(Struct, kw_only=True, rename="camel"):
    """Of all servers together, as of the last update of the statistics."""

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


class SharedState(Struct):
    enabled: bool


class FailedFiles(Struct, rename="camel"):
    count: int = 0
    total_bytes: int = 0
    total_mb: float = field(name="totalMB", default=0.0)
    failover_count: int = 0
    qos0_count: int = 0


class BufferStats(Struct, rename="camel", kw_only=True):
    pending_count: int
    failed_count: int
    db_healthy: bool
    failed_files: FailedFiles


class MaintenanceState(Struct, rename="camel", kw_only=True):
    maintenance_mode: bool
    pop_maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    buffer_stats: BufferStats


class MaintenanceMoved(Struct, rename="camel", kw_only=True):
    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenance(Struct, rename="camel", kw_only=True):
    pop_maintenance_mode: bool
    message: str


class BalancedServer(Struct, kw_only=True):
    """One server. `load_score` is about 1 when it has as much to do as it should; the figures are averages."""

    server_id: str
    url: str
    load_score: float
    healthy: bool
    local: bool
    parked_polls: float
    outstanding_requests: float
    cpu_percent: float
    circuit: Literal["closed", "open", "half_open"]


class BalancedRoutes(Struct, kw_only=True):
    """The consumer routes of the server that answers, and how often it has chosen or changed one."""

    routes: int
    assigned: int
    migrated: int
    broken: int


class Balance(Struct, kw_only=True):
    """How evenly the servers are loaded. `imbalance_score` is the distance between the busiest and the idlest."""

    balanced: bool
    imbalance_score: float
    coordinator_enabled: bool
    forwarded: int
    fallbacks: int
    affinity: BalancedRoutes
    servers: list[BalancedServer]


class Notified(Struct):
    status: Literal["ok"]


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
    """An operation. The result of a push has one element per message; `queuePosition` is null unless it waits.

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
    estimated_wait: float | None
    progress: Progress | None
    result: Any | None
    subject: str | UnsetType = UNSET
    """Who has begun it, as the token says; not there for pushes."""
    omitted: bool | UnsetType = UNSET
    """True if the result is left out because the listing has enough; ask for the operation by its id."""


class OperationPage(Struct):
    operations: list[OperationState]
    pagination: Page


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


class OperationStats(Struct, kw_only=True, rename="camel"):
    stats: list[OperationTotals]
    system_health: LoadState
    journal: JournalState | None


class Worker(Struct):
    status: Literal["active", "degraded"]
    worker_id: int


class HealthJournal(Struct, kw_only=True):
    """Messages that it holds, pushes that cannot be stored for now, that need another key, and that were set aside."""

    messages: int
    stuck: int
    waiting_for_key: int
    quarantined: int


class Health(Struct, kw_only=True):
    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: str
    version: str
    timestamp: Moment
    shared_state: SharedState
    queen: Worker
    journal: HealthJournal | None
