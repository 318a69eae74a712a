"""Which queue something belongs to that is named by an id alone: a partition, a lease, a query of a stream engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reports

_MOST: Final = 10_000


class _PartitionPlace(Struct, frozen=True):
    id: UUID
    queue: str


class LeasePlace(Struct, frozen=True):
    queue: str
    consumer_group: str


class StreamPlace(Struct, frozen=True):
    """Where a query reads and writes."""

    source_queue: str
    sink_queue: str | None


_PARTITIONS: Final = Query("queues_of_partitions", _PartitionPlace)
_LEASE: Final = Query("lease_place", LeasePlace)
_STREAM: Final = Query("stream_place", StreamPlace)


class Owners:
    """Queues of partitions are remembered: a partition stays in its queue, and its id is never used again."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._queues: OrderedDict[str, str] = OrderedDict()

    async def queues_of(self, partition_ids: Collection[str]) -> dict[str, str]:
        """The queue of each partition that there is, or of which something is left. By id in lower case."""
        wanted = {partition_id.lower() for partition_id in partition_ids}
        missing = [one for one in wanted if one not in self._queues]
        found: dict[str, str] = {}
        if missing:
            rows = await self._reports.rows(_PARTITIONS, missing)
            found = {str(row.id): row.queue for row in rows}
        found |= {one: self._queues[one] for one in wanted if one in self._queues}
        for one, queue in found.items():
            self.remember(one, queue)
        return found

    def remembered(self, partition_id: str) -> str | None:
        """The queue of a partition if it is known, and its id is in lower case."""
        return self._queues.get(partition_id)

    def remember(self, partition_id: str, queue: str) -> None:
        self._queues[partition_id] = queue
        self._queues.move_to_end(partition_id)
        if len(self._queues) > _MOST:
            self._queues.popitem(last=False)

    async def queue_of(self, partition_id: str) -> str | None:
        return (await self.queues_of((partition_id,))).get(partition_id.lower())

    async def lease(self, lease_id: str) -> LeasePlace | None:
        return await self._reports.row(_LEASE, lease_id)

    async def stream(self, *, query_id: str | None = None, name: str | None = None) -> StreamPlace | None:
        return await self._reports.row(_STREAM, query_id, name)
