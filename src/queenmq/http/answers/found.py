"""The body of the answer to a search."""

from __future__ import annotations

from msgspec import Struct

from queenmq.http.schemas import Moment, Uuid


class FoundQueue(Struct, kw_only=True):
    name: str
    namespace: str


class FoundGroup(Struct, kw_only=True):
    """A group, and a queue that it reads."""

    name: str
    queue: str


class FoundPartition(Struct, kw_only=True):
    id: Uuid
    name: str
    queue: str


class FoundMessage(Struct, kw_only=True, rename="camel"):
    """A message that is stored, and what it was found by."""

    queue: str
    partition: str
    partition_id: Uuid
    transaction_id: str
    created_at: Moment
    by_header: bool


class Found(Struct, kw_only=True):
    """What was found, the nearest first. `complete` is false if there may be messages that were not examined: see
    `queen db index`."""

    queues: list[FoundQueue]
    groups: list[FoundGroup]
    partitions: list[FoundPartition]
    messages: list[FoundMessage]
    complete: bool
