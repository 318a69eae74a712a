"""The bodies of requests by stream processors: their queries, states and cycles."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.http.requests import ErrorText, PushItem
from queenmq.http.schemas import TEXT_SCHEMA, Label, Name, Text, Uuid, documented_as

StateKey = Annotated[str, documented_as({"minLength": 1, "maxLength": 500} | TEXT_SCHEMA)]


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
    """`count` is what the broker believes; the server counts for itself."""

    transaction_id: Label | None = None
    lease_id: str | None = None
    status: str | None = None
    count: int | None = None
    error: ErrorText | None = None


class CycleBody(Struct, kw_only=True):
    query_id: Uuid
    partition_id: Uuid
    consumer_group: Label | None = None
    state_ops: list[StateOp] | None = None
    push_items: list[PushItem] | None = None
    ack: CycleAckBody | None = None
    release_lease: bool | None = None
