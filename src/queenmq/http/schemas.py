"""The bodies of requests and answers, as they stand on the wire; the OpenAPI document is made from them.

The type and the numbers are enforced when a body is decoded. What is declared with `_documented` is enforced by the
routes, with `queenmq.core.names` and `is_uuid`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from queenmq.core.names import DEFAULT_PARTITION, MAX_NAME
from queenmq.core.options import MAX_SECONDS, QueueOptions

Schema = dict[str, Any]

MAX_TRACE_NAMES = 100
TEXT_SCHEMA: Schema = {"pattern": "^[^\\u0000]*$"}
LABEL_SCHEMA: Schema = {"maxLength": MAX_NAME} | TEXT_SCHEMA
NAME_SCHEMA: Schema = {"minLength": 1} | LABEL_SCHEMA


def _documented(schema: Schema) -> Meta:
    return Meta(extra_json_schema=schema)


Text = Annotated[str, _documented(TEXT_SCHEMA)]
Label = Annotated[str, _documented(LABEL_SCHEMA)]
Name = Annotated[str, _documented(NAME_SCHEMA)]
StateKey = Annotated[str, _documented({"minLength": 1, "maxLength": 500} | TEXT_SCHEMA)]
Uuid = Annotated[str, _documented({"format": "uuid"})]
Moment = Annotated[str, _documented({"format": "date-time"})]


# Requests


class ConfigureBody(Struct, kw_only=True):
    queue: Name
    namespace: Label | None = None
    task: Label | None = None
    options: QueueOptions | None = None


class PushItem(Struct, kw_only=True, rename="camel"):
    queue: Name
    partition: Name = DEFAULT_PARTITION
    payload: Raw | UnsetType = UNSET
    transaction_id: Name | UnsetType = UNSET
    trace_id: Annotated[str, _documented({"description": "Dropped if it is no UUID."})] | UnsetType = UNSET


class PushBody(Struct):
    items: list[PushItem]


class AckBody(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    status: str | None = None
    consumer_group: Label | None = None
    lease_id: str | None = None
    error: Text | None = None


class AckBatchItem(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    status: str | None = None
    lease_id: str | None = None
    error: Text | None = None


class AckBatchBody(Struct, kw_only=True, rename="camel"):
    acknowledgments: list[AckBatchItem]
    consumer_group: Label | None = None


class Operation(Struct, kw_only=True, rename="camel"):
    """One operation of a transaction; which fields it needs depends on its type."""

    type: str
    items: list[PushItem] | None = None
    transaction_id: Name | None = None
    partition_id: Uuid | None = None
    status: str | None = None
    consumer_group: Label | None = None
    lease_id: str | None = None
    error: Text | None = None


_STRING = {"type": "string"}
_BY_TYPE: Schema = {
    "anyOf": [
        {"properties": {"type": {"const": "push"}, "items": {"type": "array"}}, "required": ["items"]},
        {
            "properties": {"type": {"const": "ack"}, "transactionId": _STRING, "partitionId": _STRING},
            "required": ["transactionId", "partitionId"],
        },
        {"properties": {"type": {"not": {"enum": ["push", "ack"]}}}, "description": "Refused with success: false."},
    ]
}


_Unsupported = Annotated[list[Any], Meta(max_length=0, description="Not supported: anything in it is refused.")]


class TransactionBody(Struct, kw_only=True, rename="camel"):
    """`kv` and `timers` of newer clients may be conditions of the whole: with them, nothing must be applied."""

    operations: Annotated[list[Annotated[Operation, _documented(_BY_TYPE)]], _documented({"minItems": 1})]
    required_leases: list[str] | None = None
    kv: _Unsupported | None = None
    timers: _Unsupported | None = None


class ExtendBody(Struct):
    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] | None = None


class TraceBody(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    data: Raw
    consumer_group: Label | None = None
    event_type: Label | None = None
    trace_names: Name | Annotated[list[Name], Meta(max_length=MAX_TRACE_NAMES)] | None = None


class SubscriptionBody(Struct, kw_only=True, rename="camel"):
    subscription_timestamp: Moment


class RedriveBody(Struct, kw_only=True, rename="camel"):
    queue: Name
    partition: Name | None = None
    consumer_group: Name | None = None


class SeekBody(Struct, kw_only=True, rename="camel"):
    to_end: bool | None = None
    timestamp: Moment | None = None


_SOMEWHERE: Schema = {
    "anyOf": [
        {"properties": {"toEnd": {"const": True}}, "required": ["toEnd"]},
        {"properties": {"timestamp": _STRING}, "required": ["timestamp"]},
    ]
}
SeekRequest = Annotated[SeekBody, _documented(_SOMEWHERE)]


class QueryBody(Struct, kw_only=True):
    name: Name
    source_queue: Name
    config_hash: Name
    sink_queue: Label | None = None
    reset: bool | None = None


class StateGetBody(Struct, kw_only=True):
    query_id: Uuid
    partition_id: Uuid
    keys: list[StateKey] | None = None
    key_prefix: Text | None = None
    ripe_at_or_before: float | None = None


class StateOp(Struct, kw_only=True):
    """An unknown type is refused with success: false."""

    type: str
    key: StateKey
    value: Raw | UnsetType = UNSET


class CycleAckBody(Struct, kw_only=True, rename="camel"):
    """`count` is what the engine believes; the server counts for itself."""

    transaction_id: Label | None = None
    lease_id: str | None = None
    status: str | None = None
    count: int | None = None
    error: Text | None = None


class CycleBody(Struct, kw_only=True):
    query_id: Uuid
    partition_id: Uuid
    consumer_group: Label | None = None
    state_ops: list[StateOp] | None = None
    push_items: list[PushItem] | None = None
    ack: CycleAckBody | None = None
    release_lease: bool | None = None


# Answers. Nothing has a default, so that the document calls everything required that is always sent.


class Error(Struct):
    """Any refusal: a sentence for people, a stable code for programs, and the field at fault where there is one."""

    error: str
    code: str
    field: str | UnsetType = UNSET


class Configured(Struct, kw_only=True, rename="camel"):
    configured: bool
    queue_id: Uuid
    partition_id: Uuid
    queue: str
    namespace: str
    task: str
    options: QueueOptions


class Progress(Struct, kw_only=True):
    """How far an operation is, in `unit`; the total is null if nobody can say it before the end."""

    done: int
    total: int | None
    unit: str


class Administered(Struct, kw_only=True):
    """With an `operationId` it goes on behind the answer, and everything counted is what was done so far."""

    status: Literal["queued", "running"] | UnsetType = UNSET
    operation_id: Uuid | UnsetType = field(name="operationId", default=UNSET)
    progress: Progress | UnsetType = UNSET


class QueueDeleted(Administered, kw_only=True):
    """The queue is gone in any case. With an `operationId` rows of it are still being removed; nobody reaches them."""

    deleted: bool
    queue: str
    existed: bool


class PushResult(Struct, kw_only=True):
    """What became of one item. Ids come in both spellings that published clients read.

    With an `operationId` the item is kept durably and stored later; `buffered` is one that is in the journal.
    """

    index: int
    status: Literal["queued", "duplicate", "failed", "buffered"]
    queue: str = field(name="queueName")
    transaction_id: str
    transaction_id_camel: str = field(name="transactionId")
    message_id: Uuid | UnsetType = UNSET
    message_id_camel: Uuid | UnsetType = field(name="messageId", default=UNSET)
    partition_id: Uuid | UnsetType = UNSET
    partition_id_camel: Uuid | UnsetType = field(name="partitionId", default=UNSET)
    trace_id: Uuid | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
    queue_plain: str | UnsetType = field(name="queue", default=UNSET)
    partition: str | UnsetType = UNSET
    operation_id: Uuid | UnsetType = field(name="operationId", default=UNSET)
    queue_position: int | UnsetType = field(name="queuePosition", default=UNSET)
    estimated_wait: float | UnsetType | None = field(name="estimatedWait", default=UNSET)
    reason: str | UnsetType = UNSET


class PoppedMessage(Struct, kw_only=True, rename="camel"):
    id: Uuid
    transaction_id: str
    trace_id: Uuid | None
    data: Raw
    producer_sub: str | None
    created_at: Moment
    partition_id: Uuid
    partition: str
    lease_id: str
    consumer_group: str
    queue: str
    retry_count: int
    traceparent: (
        Annotated[str, _documented({"description": "The W3C context in which it was pushed, if it has a traceId."})]
        | UnsetType
    ) = UNSET


class Popped(Struct, kw_only=True, rename="camel"):
    """The messages; each names its own partition. `leaseId` is empty with `autoAck`."""

    success: bool
    queue: str
    partition: str
    partition_id: Uuid
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: list[PoppedMessage]


class AckResult(Struct, kw_only=True, rename="camel"):
    index: int
    transaction_id: str
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool


class TransactionPush(Struct, kw_only=True, rename="camel", tag_field="type", tag="push"):
    index: int
    success: bool
    transaction_id: str
    message_id: Uuid
    partition_id: Uuid
    queue_name: str


class TransactionAck(Struct, kw_only=True, rename="camel", tag_field="type", tag="ack"):
    index: int
    success: bool
    transaction_id: str
    error: str | None
    dlq: bool


class TransactionResult(Struct, kw_only=True, rename="camel"):
    """One result per pushed item and per ack, in order; none if the transaction was refused, and `error` says why."""

    transaction_id: Uuid
    success: bool
    error: str | UnsetType = UNSET
    results: list[TransactionPush | TransactionAck]


class LeaseRenewed(Struct, kw_only=True, rename="camel"):
    lease_id: str
    success: bool
    renewed: bool
    error: None
    new_expires_at: Moment
    expires_at: Moment
    lease_expires_at: Moment = field(name="lease_expires_at")


class LeaseLost(Struct, kw_only=True, rename="camel"):
    lease_id: str
    success: bool
    renewed: bool
    error: str
    code: str


class GroupDeleted(Struct, kw_only=True, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str | UnsetType = UNSET
    deleted_partitions: int
    metadata_deleted: bool


class SubscriptionMoved(Struct, kw_only=True, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: Moment
    rows_updated: int


class Sought(Administered, kw_only=True, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: Moment | None
    partitions_updated: int


class Redriven(Administered, kw_only=True, rename="camel"):
    """`redriven` is the number of dead letters that were taken."""

    success: bool
    queue: str
    partition: str | None
    consumer_group: str | None
    redriven: int


class QueryRegistered(Struct, kw_only=True):
    success: bool
    query_id: Uuid
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class QueryRefused(Struct, kw_only=True):
    success: bool
    query_id: Uuid
    name: str
    error: str
    code: str


class StateRow(Struct, kw_only=True):
    key: str
    value: Raw
    updated_at: Moment


class StateFound(Struct, kw_only=True):
    success: bool
    rows: list[StateRow]


class CycleAck(Struct, kw_only=True):
    success: bool
    count: int
    lease_released: bool
    dlq: bool


class Cycled(Struct, kw_only=True):
    """If `success` is false, nothing was applied, and `error` says why."""

    success: bool
    query_id: Uuid
    partition_id: Uuid
    error: str | UnsetType = UNSET
    queue_name: str | UnsetType = field(name="queueName", default=UNSET)
    state_ops_applied: int = 0
    push_results: list[PushResult] = []
    ack_result: CycleAck | None = None


class DeadLetter(Struct, kw_only=True, rename="camel"):
    id: Uuid
    transaction_id: str
    partition_id: Uuid
    queue: str
    partition: str
    consumer_group: str
    error_message: str
    retry_count: int
    data: Raw
    undecryptable: bool
    producer_sub: str | None
    created_at: Moment
    failed_at: Moment


class Page(Struct):
    limit: int
    offset: int


class DeadLetters(Struct):
    messages: list[DeadLetter]
    pagination: Page
    total: int


class TraceAdded(Struct, kw_only=True, rename="camel"):
    success: bool
    trace_id: Uuid


class SharedState(Struct):
    enabled: bool


class SwitchBody(Struct):
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


class NotifyBody(Struct):
    queue: Name
    partition: Name | UnsetType = UNSET


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


OperationStatus = Literal["pending", "processing", "completed", "failed", "cancelled"]


class OperationState(Struct, kw_only=True, rename="camel"):
    """An operation. The result of a push has one element per message; `queuePosition` is null unless it waits.

    Administration has a progress, and as its result the answer that its request would have got.
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
    queue_position: int | None
    estimated_wait: float | None
    progress: Progress | None
    result: Raw | None


class OperationPage(Struct):
    operations: list[OperationState]
    pagination: Page


class OperationMoved(Struct, kw_only=True, rename="camel"):
    """`message` says what cancelled administration has done."""

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


class OperationStats(Struct, kw_only=True, rename="camel"):
    stats: list[OperationTotals]
    system_health: LoadState
    journal: JournalState | None


class Worker(Struct):
    status: Literal["active", "degraded"]
    worker_id: int


class Health(Struct, kw_only=True):
    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: str
    version: str
    timestamp: Moment
    shared_state: SharedState
    queen: Worker
