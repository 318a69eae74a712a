"""Everything in a few numbers, and how fast messages move."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.reports.queues import Counts
from queenmq.reports.reading import Query, Reader, Reports
from queenmq.reports.scope import EVERYTHING, Scope


class Overview(Counts, frozen=True):
    """The sums of the statistics, and the lag over the groups that have something unread: in seconds, and in messages.
    `age_s` is the age of the oldest of these figures."""

    queues: int
    namespaces: int
    tasks: int
    partitions: int
    consumed: int
    leases: int
    leased: int
    age_s: float
    lag_avg_s: float | None
    lag_median_s: float | None
    lag_min_s: float | None
    lag_max_s: float | None
    lag_avg: float | None
    lag_median: float | None
    lag_min: int | None
    lag_max: int | None
    now: datetime


class Rates(Struct, frozen=True):
    """Messages a second, over the last minute or two."""

    pushed: float
    popped: float
    acked: float


_OVERVIEW: Final = Query("overview", Overview)
_RATES: Final = Query("recent_rates", Rates)


async def overview(reader: Reader, scope: Scope = EVERYTHING) -> Overview:
    return await reader.one(_OVERVIEW, scope.queue, scope.namespace, scope.task)


async def overview_and_rates(reports: Reports) -> tuple[Overview, Rates]:
    async def read(reader: Reader) -> tuple[Overview, Rates]:
        return await overview(reader), await reader.one(_RATES)

    return await reports.snapshot(read)
