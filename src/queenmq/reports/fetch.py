"""Messages read by offset or by time, without a group. Payloads are as they are stored, which may be encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """From `offset`, or from the first message at or after `since`."""

    queue: str
    partition: str
    offset: int | None
    since: datetime | None
    limit: int
    max_bytes: int


class StoredMessage(Struct, frozen=True):
    offset: int
    id: UUID
    transaction_id: str
    trace_id: UUID | None
    producer_sub: str | None
    created_at: datetime
    is_encrypted: bool
    payload: bytes
    headers: str | None


@dataclass(slots=True)
class Fetched:
    """What was read of a partition that keeps the messages `first_offset` to `last_offset`."""

    first_offset: int
    last_offset: int
    start: int
    messages: list[StoredMessage] = field(default_factory=list)


class _Row(Struct, frozen=True):
    entry: int
    partition_id: UUID | None
    first_offset: int | None
    last_offset: int | None
    start: int | None
    offset: int | None
    id: UUID | None
    transaction_id: str | None
    trace_id: UUID | None
    producer_sub: str | None
    created_at: datetime | None
    is_encrypted: bool | None
    payload: bytes | None
    headers: str | None


_FETCH: Final = Query("fetch", _Row)


async def fetch(reader: Reader, wanted: Sequence[Wanted], max_bytes: int) -> list[Fetched | None]:
    """One for each that is wanted, all as of one moment: None if there is no such partition.

    Together, the payloads have at most `max_bytes`, unless the first one alone is larger.
    """
    rows = await reader.rows(
        _FETCH,
        [one.queue for one in wanted],
        [one.partition for one in wanted],
        [one.offset for one in wanted],
        [one.since for one in wanted],
        [one.limit for one in wanted],
        [one.max_bytes for one in wanted],
        max_bytes,
    )
    found: list[Fetched | None] = [None] * len(wanted)
    for row in rows:
        if row.first_offset is None or row.last_offset is None or row.start is None:
            continue
        fetched = found[row.entry - 1]
        if fetched is None:
            fetched = found[row.entry - 1] = Fetched(row.first_offset, row.last_offset, row.start)
        if row.offset is not None:
            fetched.messages.append(_message(row))
    return found


def _message(row: _Row) -> StoredMessage:
    return StoredMessage(*[getattr(row, name) for name in StoredMessage.__struct_fields__])
