"""The bodies of requests, as they stand on the wire. Checks beyond types are made by the routes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.core.names import DEFAULT_PARTITION
from queenmq.core.options import QueueOptions

NULL = Raw(b"null")


class ConfigureBody(Struct, kw_only=True):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: QueueOptions | None = None


class PushItem(Struct, kw_only=True, rename="camel"):
    queue: str
    partition: str = DEFAULT_PARTITION
    payload: Raw | UnsetType = UNSET
    transaction_id: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


class PushBody(Struct):
    items: list[PushItem]


class AckBody(Struct, kw_only=True, rename="camel"):
    transaction_id: str
    partition_id: str
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class AckBatchItem(Struct, kw_only=True, rename="camel"):
    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None


class AckBatchBody(Struct, kw_only=True, rename="camel"):
    acknowledgments: list[AckBatchItem]
    consumer_group: str | None = None


class Operation(Struct, kw_only=True, rename="camel"):
    """One operation of a transaction; which fields it needs depends on its type."""

    type: str
    items: list[PushItem] | None = None
    transaction_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class TransactionBody(Struct, kw_only=True, rename="camel"):
    operations: list[Operation]
    required_leases: list[str] | None = None


class ExtendBody(Struct):
    seconds: int | None = None


class TraceBody(Struct, kw_only=True, rename="camel"):
    transaction_id: str
    partition_id: str
    data: Raw
    consumer_group: str | None = None
    event_type: str | None = None
    trace_names: str | list[str] | None = None


class SubscriptionBody(Struct, kw_only=True, rename="camel"):
    subscription_timestamp: str


class SeekBody(Struct, kw_only=True, rename="camel"):
    to_end: bool | None = None
    timestamp: str | None = None


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
