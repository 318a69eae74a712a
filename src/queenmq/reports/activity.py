"""What servers did over time: in all, by queue, and the long polls that they held."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.reports.reading import Query, Reader
from queenmq.reports.scope import EVERYTHING, Scope, TimeRange


class Totals(Struct, frozen=True):
    """What all servers did since the database was made."""

    push_requests: int
    push_messages: int
    pop_requests: int
    pop_messages: int
    ack_requests: int
    ack_success: int
    ack_failed: int
    dead_lettered: int
    transactions: int
    db_errors: int


class Lag(Struct, frozen=True):
    """How old the first messages of pops were when they were delivered."""

    lag_count: int
    lag_sum_ms: float
    lag_max_ms: float

    @property
    def average_lag_ms(self) -> float:
        return self.lag_sum_ms / self.lag_count if self.lag_count else 0.0


class Point(Lag, frozen=True):
    """What was done in the stretch of time that begins with `bucket`."""

    bucket: datetime
    push_requests: int
    push_messages: int
    pop_requests: int
    pop_messages: int
    ack_requests: int
    ack_success: int
    ack_failed: int
    dead_lettered: int
    retained: int
    evicted: int
    db_errors: int


class QueueMinute(Lag, frozen=True):
    """What was done to a queue in the last whole minute, which began at `bucket` and has been over for `age_s`."""

    queue_name: str
    bucket: datetime
    push_requests: int
    push_messages: int
    pop_messages: int
    pop_empty: int
    ack_success: int
    ack_failed: int
    transactions: int
    age_s: float


class QueuePoint(Lag, frozen=True):
    """What was done to a queue in the stretch of time that begins with `bucket`."""

    queue_name: str
    bucket: datetime
    push_requests: int
    push_messages: int
    pop_messages: int
    pop_empty: int
    ack_requests: int
    ack_success: int
    ack_failed: int
    transactions: int
    parked: int
    partitions: int | None


class ParkedPoint(Struct, frozen=True):
    """The most long polls that a server held for a queue in the stretch of time that begins with `bucket`."""

    queue_name: str
    server: str
    bucket: datetime
    parked: int


_TOTALS: Final = Query("activity_totals", Totals)
_SERIES: Final = Query("activity_series", Point)
_LAST_MINUTE: Final = Query("activity_last_minute", QueueMinute)
_BY_QUEUE: Final = Query("queue_activity", QueuePoint)
_PARKED: Final = Query("parked_activity", ParkedPoint)


async def totals(reader: Reader) -> Totals:
    return await reader.one(_TOTALS)


async def series(
    reader: Reader, span: TimeRange, scope: Scope = EVERYTHING, bucket_minutes: int | None = None
) -> list[Point]:
    """What was done in `span`, oldest first, in buckets as wide as suits it unless a width is given."""
    width = span.bucket_minutes if bucket_minutes is None else bucket_minutes
    return await reader.rows(_SERIES, span.since, span.until, width, scope.queue, scope.namespace, scope.task)


async def last_minute(reader: Reader, limit: int) -> list[QueueMinute]:
    """The queues that saw most in the last whole minute, the busiest first."""
    return await reader.rows(_LAST_MINUTE, limit)


async def by_queue(reader: Reader, span: TimeRange, queue: str | None, most_queues: int) -> list[QueuePoint]:
    """What was done to one queue, or to those that saw most at the end of the range."""
    return await reader.rows(_BY_QUEUE, span.since, span.until, span.bucket_minutes, queue, most_queues)


async def parked(reader: Reader, span: TimeRange, queue: str | None, most_queues: int) -> list[ParkedPoint]:
    """The long polls held for one queue, or for those that most waited for at the end of the range."""
    return await reader.rows(_PARKED, span.since, span.until, span.bucket_minutes, queue, most_queues)
