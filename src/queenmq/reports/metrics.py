"""What the database knows of the figures that a server exposes to Prometheus."""

from __future__ import annotations

from msgspec import Struct

from queenmq.reports import activity, dead_letters, groups, operations, pauses, pipeline
from queenmq.reports.overview import Overview, overview
from queenmq.reports.reading import Reader, Reports


class StoredMetrics(Struct, frozen=True):
    totals: activity.Totals
    last_minute: list[activity.QueueMinute]
    overview: Overview
    operations: operations.OperationGauges
    dead_letters: list[dead_letters.QueueLetters]
    pauses: list[pauses.QueuePauses]
    pipelines: list[pipeline.Pipeline]
    groups: list[groups.GroupMetrics]


async def stored(reports: Reports, most_queues: int, most_groups: int) -> StoredMetrics:
    async def read(reader: Reader) -> StoredMetrics:
        return StoredMetrics(
            totals=await activity.totals(reader),
            last_minute=await activity.last_minute(reader, most_queues),
            overview=await overview(reader),
            operations=await operations.gauges(reader),
            dead_letters=await dead_letters.by_queue(reader, most_queues),
            pauses=await pauses.by_queue(reader, most_queues),
            pipelines=await pipeline.pipelines(reader, None, most_queues),
            groups=await groups.metrics(reader, most_groups),
        )

    return await reports.snapshot(read)
