"""Throughput, backlog, dead letters and servers over a stretch of time."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.reports import activity, partitions, queues, servers
from queenmq.reports.overview import Overview, overview
from queenmq.reports.reading import Query, Reader, Reports
from queenmq.reports.scope import Scope, TimeRange


class FrequentError(Struct, frozen=True):
    """An error among the newest dead letters: the newest of those with the same fingerprint."""

    error: str
    fingerprint: str
    count: int
    last_at: datetime


class Status(Struct, frozen=True):
    """`affected_partitions` are the pairs of a partition and a group with dead letters; `processed` the messages that
    were acknowledged at each server."""

    overview: Overview
    series: list[activity.Point]
    samples: list[servers.Sample]
    processed: dict[str, int]
    queues: list[queues.ListedQueue]
    affected_partitions: int
    top_errors: list[FrequentError]
    failing: list[partitions.FailingHeads]


class _Processed(Struct, frozen=True):
    server: str
    processed: int


class _Affected(Struct, frozen=True):
    partitions: int


_MOST_FAILING: Final = 10
_PROCESSED: Final = Query("processed_by_server", _Processed)
_AFFECTED: Final = Query("affected_partitions", _Affected)
_TOP_ERRORS: Final = Query("top_errors", FrequentError)


async def status(reports: Reports, span: TimeRange, scope: Scope, most_queues: int) -> Status:
    async def read(reader: Reader) -> Status:
        found = await queues.page(
            reader, namespace=scope.namespace, task=scope.task, search=scope.queue, limit=most_queues, offset=0
        )
        processed = await reader.rows(_PROCESSED, span.since, span.until)
        return Status(
            overview=await overview(reader, scope),
            series=await activity.series(reader, span, scope),
            samples=await servers.samples(reader, span),
            processed={one.server: one.processed for one in processed},
            queues=[queue for queue in found if scope.queue in (None, queue.name)],
            affected_partitions=(await reader.one(_AFFECTED, scope.queue)).partitions,
            top_errors=await frequent_errors(reader, scope.queue),
            failing=await partitions.failing_heads(reader, scope.queue, _MOST_FAILING),
        )

    return await reports.snapshot(read)


async def frequent_errors(reader: Reader, queue: str | None) -> list[FrequentError]:
    """The errors of the newest thousand dead letters of a queue, or of all, the most frequent first."""
    return await reader.rows(_TOP_ERRORS, queue)
