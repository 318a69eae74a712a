"""How the servers were over time: processor, memory, connections, event loop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from queenmq.reports.reading import Query, Reader
from queenmq.reports.scope import TimeRange

_MEGABYTE: Final = 1024 * 1024


class Sample(Struct, frozen=True):
    """How a server was in the stretch of time that begins with `bucket`, when it last said so (`at`). `figures` is the
    JSON text of everything that it measured."""

    server: str
    bucket: datetime
    hostname: str
    port: int
    worker_id: str
    samples: int
    figures: str
    at: datetime

    def measured(self) -> Measured:
        return _decode(self.figures)


class Figure(Struct, frozen=True):
    """One figure over the samples of a stretch of time."""

    avg: int | float
    min: int | float
    max: int | float
    last: int | float


class EventLoop(Struct, frozen=True):
    lag_ms: Figure
    free_slots: Figure


class Calls(Struct, frozen=True):
    queue_size: Figure


class Workers(Struct, frozen=True):
    db: Calls


class Connections(Struct, frozen=True):
    pool_size: Figure
    pool_idle: Figure
    pool_active: Figure


class Processor(Struct, frozen=True):
    user_us: Figure
    system_us: Figure
    interval_us: Figure

    @property
    def user_percent(self) -> float:
        """Of one processor."""
        return self.user_us.avg / self.interval_us.avg * 100

    @property
    def system_percent(self) -> float:
        return self.system_us.avg / self.interval_us.avg * 100


class Memory(Struct, frozen=True):
    rss_bytes: Figure


class Backoff(Struct, frozen=True):
    groups: Figure


class Measured(Struct, frozen=True):
    """Those of a sample's figures that are summed over servers."""

    event_loop: EventLoop
    threadpool: Workers
    database: Connections
    cpu: Processor
    memory: Memory
    backoff: Backoff


class Together(Struct, frozen=True):
    """How the servers together were at one time."""

    loop_lag_avg_ms: float
    loop_lag_max_ms: float
    free_slots_avg: float
    free_slots_min: float
    waiting_avg: float
    waiting_max: float
    backed_off: float
    user_percent: float
    system_percent: float
    resident_mb: float
    connections: float
    connections_active: float
    connections_idle: float


_SAMPLES: Final = Query("sample_series", Sample)
_decode: Final = msgspec.json.Decoder(Measured).decode


async def samples(
    reader: Reader, span: TimeRange, hostname: str | None = None, worker_id: str | None = None
) -> list[Sample]:
    """The last sample of each server and bucket, by server and then by time."""
    return await reader.rows(_SAMPLES, span.since, span.until, span.bucket_minutes, hostname, worker_id)


def last_of_each(found: Iterable[Sample]) -> dict[str, Sample]:
    """The newest sample of each server."""
    return {sample.server: sample for sample in found}


def by_bucket(found: Iterable[Sample]) -> dict[datetime, Together]:
    gathered: dict[datetime, list[Measured]] = {}
    for sample in found:
        gathered.setdefault(sample.bucket, []).append(sample.measured())
    return {bucket: together(measured) for bucket, measured in gathered.items()}


def measured(found: Iterable[Sample], span: TimeRange, every_s: float) -> list[datetime]:
    """In which buckets of `span` some server measured what was done. A sample is stored at the end of what it is about,
    every `every_s` and somewhat later; of what ended last, it may be still to come."""
    width, late = timedelta(minutes=span.bucket_minutes), timedelta(seconds=2 * every_s)
    stored = sorted(sample.at for sample in found)
    bucket = datetime.fromtimestamp(span.since.timestamp() // width.total_seconds() * width.total_seconds(), UTC)
    buckets = []
    while bucket <= span.until:
        following = bisect_right(stored, bucket)
        end = bucket + width + late
        if end > span.until or (following < len(stored) and stored[following] <= end):
            buckets.append(bucket)
        bucket += width
    return buckets


def together(servers: Sequence[Measured]) -> Together:
    """Zeros if there are none."""
    lag = [server.event_loop.lag_ms for server in servers]
    slots = [server.event_loop.free_slots for server in servers]
    waiting = [server.threadpool.db.queue_size for server in servers]
    return Together(
        loop_lag_avg_ms=_mean([figure.avg for figure in lag]),
        loop_lag_max_ms=max((figure.max for figure in lag), default=0),
        free_slots_avg=_mean([figure.avg for figure in slots]),
        free_slots_min=min((figure.min for figure in slots), default=0),
        waiting_avg=_mean([figure.avg for figure in waiting]),
        waiting_max=max((figure.max for figure in waiting), default=0),
        backed_off=sum(server.backoff.groups.last for server in servers),
        user_percent=sum(server.cpu.user_percent for server in servers),
        system_percent=sum(server.cpu.system_percent for server in servers),
        resident_mb=sum(server.memory.rss_bytes.last for server in servers) / _MEGABYTE,
        connections=sum(server.database.pool_size.last for server in servers),
        connections_active=sum(server.database.pool_active.last for server in servers),
        connections_idle=sum(server.database.pool_idle.last for server in servers),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
