"""The kinds of text on the wire, and the bodies of answers to what changes something; the OpenAPI document is made
from them. Bodies of requests are in `requests`, answers to what is only read in `answers`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from queenmq.core.names import MAX_NAME
from queenmq.core.options import QueueOptions

Schema = dict[str, Any]

TEXT_SCHEMA: Schema = {"pattern": "^[^\\u0000]*$"}
LABEL_SCHEMA: Schema = {"maxLength": MAX_NAME} | TEXT_SCHEMA
NAME_SCHEMA: Schema = {"minLength": 1} | LABEL_SCHEMA


def documented_as(schema: Schema) -> Meta:
    """Something that the document says and a decoder does not enforce."""
    return Meta(extra_json_schema=schema)


Text = Annotated[str, documented_as(TEXT_SCHEMA)]
Label = Annotated[str, documented_as(LABEL_SCHEMA)]
Name = Annotated[str, documented_as(NAME_SCHEMA)]
Uuid = Annotated[str, documented_as({"format": "uuid"})]
Moment = Annotated[str, documented_as({"format": "date-time"})]
HeadersShown = Annotated[Raw, documented_as({"type": "object", "additionalProperties": {"type": "string"}})]


def headers_shown(headers: str | None) -> Raw | UnsetType:
    """The headers of a message as they are stored; left out of the answer if there are none."""
    return UNSET if headers is None else Raw(headers.encode())


# Answers. Nothing has a default, so that the document calls everything required that is always sent.


class Error(Struct, rename={"queue_depth": "queueDepth"}):
    """Any refusal: a sentence for people, a stable code for programs, and the field at fault where there is one. A push
    that is refused because the operation queue is full has its depth."""

    error: str
    code: str
    field: str | UnsetType = UNSET
    queue_depth: int | UnsetType = UNSET


class OffsetDiffers(Struct):
    """A partition that does not end where a push expects."""

    queue: str
    partition: str
    expected: int
    actual: int


class ConflictError(Error):
    """With the code `offset_conflict`, the last offsets that were found; nothing was stored."""

    conflicts: list[OffsetDiffers] | UnsetType = UNSET


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
    """The result of one item. Ids have both spellings that published clients read.

    `queued` without an `operationId` means stored. With an `operationId` the item is on disk and stored later:
    `queued` in the operation queue, `buffered` in the journal of the server. `scheduled` means that a timer is stored,
    which becomes the message at `deliverAt` and can be cancelled by its `timerKey` until then.
    """

    index: int
    status: Literal["queued", "duplicate", "failed", "buffered", "scheduled"]
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
    offset: Annotated[int, Meta(description="Of the message that is stored, in its partition.")] | UnsetType = UNSET
    timer_key: str | UnsetType = field(name="timerKey", default=UNSET)
    deliver_at: Moment | UnsetType = field(name="deliverAt", default=UNSET)


class PoppedMessage(Struct, kw_only=True, rename="camel"):
    id: Uuid
    transaction_id: str
    trace_id: Uuid | None
    data: Raw
    producer_sub: str | None
    created_at: Moment
    partition_id: Uuid
    partition: str
    offset: Annotated[int, Meta(description="Its number in the partition: without gaps, in the order of the commits.")]
    lease_id: str
    consumer_group: str
    queue: str
    retry_count: int
    headers: HeadersShown | UnsetType = UNSET
    traceparent: (
        Annotated[str, documented_as({"description": "The W3C context in which it was pushed, if it has a traceId."})]
        | UnsetType
    ) = UNSET


class Popped(Struct, kw_only=True, rename="camel"):
    """The messages; each names its own partition. `leaseId` is empty with `autoAck`. A pop that asks for conflation has
    one of the last two fields, and an answer also if there are no messages."""

    success: bool
    queue: str | None
    partition: str | None
    partition_id: Uuid | None
    lease_id: str | None
    consumer_group: str
    partitions_claimed: int
    messages: list[PoppedMessage]
    conflation: bool | UnsetType = UNSET
    conflation_conflict: bool | UnsetType = UNSET


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
    offset: int


class TransactionAck(Struct, kw_only=True, rename="camel", tag_field="type", tag="ack"):
    index: int
    success: bool
    transaction_id: str
    error: str | None
    dlq: bool


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


class ExceptedResult(Struct, kw_only=True, rename="camel"):
    index: int
    transaction_id: str
    success: bool
    error: str | None
    dlq: bool


class LeaseFinished(Struct, kw_only=True, rename="camel"):
    """`taken` and `takeError` are there if something was to be taken."""

    lease_id: str
    success: bool
    error: str | None
    messages: int
    dlq: int
    excepted: list[ExceptedResult] = field(name="except")
    code: str | UnsetType = UNSET
    taken: Popped | UnsetType | None = UNSET
    take_error: str | UnsetType | None = UNSET


class RenewResult(Struct, kw_only=True, rename="camel"):
    """What became of one `renew` on a consumer connection: the fields of `LeaseRenewed` or `LeaseLost`."""

    lease_id: str
    success: bool
    renewed: bool
    error: str | None
    code: str | UnsetType = UNSET
    new_expires_at: Moment | UnsetType = UNSET
    expires_at: Moment | UnsetType = UNSET
    lease_expires_at: Moment | UnsetType = field(name="lease_expires_at", default=UNSET)


class ServerFrame(Struct, kw_only=True, omit_defaults=True):
    """What a server sends on a consumer connection; what is empty is left out. With `stopping` it is about to stop, and
    delivers nothing more."""

    finished: list[LeaseFinished] = []
    renewed: list[RenewResult] = []
    delivered: list[Popped] = []
    stopping: bool = False


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
    """If `success` is false, nothing was applied, and `error` says why.

    `stale` is there, and true, if nothing was applied because the state that a cycle without a message deletes is not
    what its broker has read: it was flushed or emitted before, or has changed. Read the state again.
    """

    success: bool
    query_id: Uuid
    partition_id: Uuid
    error: str | UnsetType = UNSET
    stale: bool | UnsetType = UNSET
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
    headers: HeadersShown | UnsetType = UNSET
    created_at: Moment
    failed_at: Moment
    omitted: bool | UnsetType = UNSET
    """True if the payload is left out because the answer has enough; ask for the message by its ids."""


class Page(Struct):
    limit: int
    offset: int


class LettersOfQueue(Struct, kw_only=True):
    name: str
    total: int


class DeadLetters(Struct):
    """`queues`, where they were asked for, says in which queues they are, the most first."""

    messages: list[DeadLetter]
    pagination: Page
    total: int
    queues: list[LettersOfQueue] | UnsetType = UNSET


class TraceAdded(Struct, kw_only=True, rename="camel"):
    success: bool
    trace_id: Uuid
