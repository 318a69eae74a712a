"""Bodies of answers about the servers: health, load, maintenance, operations, the cluster, the live snapshot, the
session, the runs of pipeline jobs and declared pipelines."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from queenmq.access.permissions import Grant
from queenmq.http.schemas import Moment, Page, Uuid


class Session(Struct, kw_only=True):
    """`tokens`: whether they are demanded here. `grants`: what the token is restricted to, if it is."""

    tokens: bool
    subject: str | None
    role: Literal["read-only", "read-write", "admin"]
    grants: tuple[Grant, ...] | UnsetType = UNSET


class Login(Struct, kw_only=True, rename="camel"):
    """The OpenID provider at which people sign in to the dashboard; everything is null if there is none. `token` says
    which of its tokens is shown to Queen."""

    issuer: str | None = None
    client_id: str | None = None
    scopes: str | None = None
    token: Literal["id_token", "access_token"] | None = None


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
    """One beat. `problem` is why there is no backlog; `journal` the messages that wait for the database;
    `silentServers` are those that are counted as dead."""

    at: Moment
    server: LiveServer
    counts: LiveCounts
    waiters: int
    waited_for: list[LiveQueue]
    operations_waiting: int
    journal: int
    servers_alive: int
    servers_dead: int
    silent_servers: list[str]
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
    gathered: int


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
