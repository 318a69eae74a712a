"""Traces: what was recorded about messages, by message and by name."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader, Reports

_MOST_COUNTED: Final = 1000
_COUNTED_A_NAME: Final = 100


class Trace(Struct, frozen=True):
    """`data` is JSON; None, and `omitted`, if it is left out because that before it is large."""

    id: UUID
    event_type: str
    data: bytes | None
    omitted: bool
    consumer_group: str | None
    worker_id: str | None
    created_at: datetime
    names: list[str]


class NamedTrace(Trace, frozen=True):
    """A trace with the message that it is about; its payload is as it is stored, None if it is stored no more."""

    transaction_id: str
    partition_id: UUID
    queue: str
    partition: str
    payload: bytes | None
    is_encrypted: bool | None


class NamedTracePage(Struct, frozen=True):
    """`total` is counted up to a bound."""

    traces: list[NamedTrace]
    total: int


class TraceName(Struct, frozen=True):
    """A name with how many traces and messages have it, counted up to a bound. `total` is how many names there are."""

    name: str
    traces: int
    messages: int
    last_seen: datetime
    total: int


class _Count(Struct, frozen=True):
    traces: int


_OF_MESSAGE: Final = Query("traces_of_message", Trace)
_BY_NAME: Final = Query("traces_by_name", NamedTrace)
_COUNT: Final = Query("traces_by_name_count", _Count)
_NAMES: Final = Query("trace_names", TraceName)


async def of_message(
    reader: Reader, partition_id: str, transaction_id: str, limit: int, *, max_bytes: int
) -> list[Trace]:
    """The traces of a message, oldest first, with data up to `max_bytes`."""
    return await reader.rows(_OF_MESSAGE, partition_id, transaction_id, limit, max_bytes)


async def by_name(reports: Reports, name: str, limit: int, offset: int, *, max_bytes: int) -> NamedTracePage:
    """The traces of a name, newest first, with data and payloads up to `max_bytes`."""

    async def read(reader: Reader) -> NamedTracePage:
        traces = await reader.rows(_BY_NAME, name, limit, offset, max_bytes)
        count = await reader.one(_COUNT, name, max(_MOST_COUNTED, offset + limit))
        return NamedTracePage(traces, count.traces)

    return await reports.snapshot(read)


async def names(reader: Reader, limit: int, offset: int) -> list[TraceName]:
    return await reader.rows(_NAMES, limit, offset, _MOST_COUNTED, _COUNTED_A_NAME)
