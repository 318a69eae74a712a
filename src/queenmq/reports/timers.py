"""Timers that wait for their moment."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader


class TimerRow(Struct, frozen=True):
    """`payload` is as it is stored, and None in a list. `error` is that of the last of `attempts` that failed."""

    queue_name: str
    key: str
    partition_name: str
    deliver_at: datetime
    message_id: UUID
    transaction_id: str
    is_encrypted: bool
    schedule: str | None
    time_zone: str | None
    attempts: int
    error: str | None
    created_at: datetime
    payload: bytes | None
    headers: str | None


_FIND: Final = Query("find_timer", TimerRow)
_LIST: Final = Query("list_timers", TimerRow)


async def find(reader: Reader, queue: str, key: str) -> TimerRow | None:
    return await reader.row(_FIND, queue, key)


async def page(reader: Reader, queue: str, after: str, limit: int) -> list[TimerRow]:
    """By key, those behind `after`."""
    return await reader.rows(_LIST, queue, after, limit)
