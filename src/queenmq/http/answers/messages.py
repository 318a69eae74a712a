"""Bodies of answers about messages, dead letters and traces."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.http.answers.attempts import AttemptShown
from queenmq.http.schemas import HeadersShown, Moment, Page, Uuid
from queenmq.reports.messages import MessageStatus


class BusStatus(Struct, kw_only=True, rename="camel"):
    """How many of the named groups of its partition have finished a message."""

    consumed_by: int
    total_groups: int


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
    status: MessageStatus
    queue_status: MessageStatus
    bus_status: BusStatus
    trace_id: Uuid | None
    producer_sub: str | None
    headers: HeadersShown | UnsetType = UNSET
    queue_priority: int
    created_at: Moment
    lease_expires_at: Moment | None
    payload: Raw | UnsetType = UNSET
    omitted: bool | UnsetType = UNSET
    """True if the payload is left out because the listing has enough; ask for the message by its ids."""


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
    status: MessageStatus
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
    """`attempts`: how often the message has failed for this group, as explain says of the head, and the last time
    included. `consumed`: the group has passed the message, which may then be a dead letter: `status` says so."""

    name: str
    consumed: bool
    status: MessageStatus
    attempts: int
    lease_expires_at: Moment | None


class MessageDescribed(Struct, kw_only=True, rename="camel"):
    """One message with its payload as it was pushed; null, and `undecryptable`, if the key is not here. `retryCount` is
    how often it has failed, for the group for which it failed most; `attempts` are the last ten failures of each group,
    newest first."""

    id: Uuid
    transaction_id: str
    partition_id: Uuid
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: MessageStatus
    payload: Raw
    is_encrypted: bool
    undecryptable: bool
    trace_id: Uuid | None
    producer_sub: str | None
    headers: HeadersShown | UnsetType = UNSET
    created_at: Moment
    error_message: str | None
    retry_count: int
    lease_expires_at: Moment | None
    queue_config: MessageConfig
    mode: MessageMode
    consumer_groups: list[MessageGroup]
    attempts: list[AttemptShown]


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
    omitted: bool | UnsetType = UNSET
    """True if data and payload are left out because the answer has enough; ask for fewer."""


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


FetchError = Literal["UNKNOWN_TOPIC_OR_PARTITION", "OFFSET_OUT_OF_RANGE", "CANNOT_DECRYPT"]


class FetchedRecord(Struct, kw_only=True, rename="camel"):
    offset: int
    id: Uuid
    transaction_id: str
    payload: Raw
    ts: Moment
    trace_id: Uuid | None
    producer_sub: str | None
    headers: HeadersShown | UnsetType = UNSET


class FetchedEntry(Struct, kw_only=True, rename="camel"):
    """`highWatermark` is the offset that the next message will get, `logStartOffset` the first that is not deleted for
    certain, and `nextOffset` where to go on reading. With an `error` there are no records: there is no such partition,
    its messages do not reach from `logStartOffset` to the offset, or the first payload cannot be decrypted here."""

    queue: str
    partition: str
    error: FetchError | UnsetType = UNSET
    message: str | UnsetType = UNSET
    records: list[FetchedRecord]
    high_watermark: int
    log_start_offset: int
    next_offset: int


class MessagesFetched(Struct):
    entries: list[FetchedEntry]
