"""The operation queue: deferred pushes and stepped operations, as all servers share it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.core.operations import OperationStatus
from queenmq.reports.reading import Query, Reader


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """Which operations, each if given; `permitted` has patterns for the names of the queues that may be seen."""

    status: str | None = None
    queue: str | None = None
    kind: str | None = None
    partition: str | None = None
    permitted: list[str] | None = None


class Operation(Struct, frozen=True):
    """`result` of a push is JSON text, for `core.operations.read_outcomes`; `omitted` if it is left out because those
    before it are large. Of a stepped operation it is what an older version has recorded, the answer as it was.

    `group` and `moment` are what a stepped operation was asked for, `position` where a seek in one partition has moved
    the group; `deleted` messages and `dropped` partitions are those of retention. `before` is how many operations come
    before it. `latency_s` is from its beginning to its end, or until now.
    """

    id: UUID
    kind: str
    queue_name: str | None
    partition_name: str | None
    priority: int
    subject: str | None
    status: OperationStatus
    attempts: int
    error: str | None
    result: str | None
    omitted: bool
    group: str | None
    moment: datetime | None
    position: int | None
    deleted: int | None
    dropped: int | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    done: int
    total: int | None
    unit: str
    next_attempt_at: datetime | None
    items: int | None
    latency_s: float
    before: int | None


class OperationTotals(Struct, frozen=True):
    """The operations of a kind, a priority and a status together."""

    kind: str
    priority: int
    status: OperationStatus
    count: int
    oldest: datetime
    newest: datetime
    latency_s: float


class OperationDepth(Struct, frozen=True):
    """The open operations of a partition; without one, those of the whole queue, or of all queues."""

    queue: str | None
    partition: str | None
    operations: int
    oldest_s: float


class _Count(Struct, frozen=True):
    count: int


class OperationGauges(Struct, frozen=True):
    """By status what is not completed, how many are tried again after a failure, and the age of the oldest open one."""

    pending: int
    processing: int
    blocked: int
    failed: int
    retrying: int
    oldest_s: float | None


_ONE: Final = Query("operation", Operation)
_PAGE: Final = Query("operations", Operation)
_TOTALS: Final = Query("operation_stats", OperationTotals)
_COUNT: Final = Query("operations_count", _Count)
_DEPTHS: Final = Query("operation_depths", OperationDepth)
MOST_COUNTED: Final = 100_000
_GAUGES: Final = Query("operation_metrics", OperationGauges)


async def find(reader: Reader, operation_id: str) -> Operation | None:
    return await reader.row(_ONE, operation_id)


async def page(reader: Reader, which: OperationFilter, limit: int, offset: int, *, max_bytes: int) -> list[Operation]:
    """Newest first, with results of up to `max_bytes`."""
    return await reader.rows(
        _PAGE, which.status, which.queue, which.kind, limit, offset, max_bytes, which.permitted, which.partition
    )


async def count(reader: Reader, which: OperationFilter) -> int:
    """How many match, up to `MOST_COUNTED`."""
    narrowed = which.status, which.queue, which.kind, which.partition, which.permitted
    return (await reader.one(_COUNT, *narrowed, MOST_COUNTED)).count


async def depths(reader: Reader, limit: int) -> list[OperationDepth]:
    """The partitions with the most open operations."""
    return await reader.rows(_DEPTHS, limit)


async def totals(reader: Reader) -> list[OperationTotals]:
    return await reader.rows(_TOTALS)


async def gauges(reader: Reader) -> OperationGauges:
    return await reader.one(_GAUGES)
