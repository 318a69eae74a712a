"""The targets of a merged push: the ids of its partitions, and the options of its queues.

Both come from the caches. `queen.push` finds out for itself what they do not know or have wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.broker.caches import Caches
from queenmq.broker.queue_options import QueueOptions
from queenmq.clock import Clock
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_names = msgspec.json.Decoder(list[str])


class Targets:
    def __init__(
        self, database: Database, caches: Caches, options: QueueOptions, clock: Clock, *, cached: bool
    ) -> None:
        self._database = database
        self._ids = caches.partition_ids
        self._known_options = caches.options
        self._options = options
        self._clock = clock
        self._cached = cached

    async def resolve(self, queues: Sequence[str], partitions: Sequence[str]) -> list[str] | None:
        """The ids of these partitions if all are known, in order; and have the options of their queues at hand."""
        if not self._cached:
            return await self._ask(queues, partitions)
        if not self._known_options.has_all(queues):
            await self._options.load_missing(set(queues))
        return self._ids.find(queues, partitions, self._clock.monotonic())

    async def _ask(self, queues: Sequence[str], partitions: Sequence[str]) -> list[str] | None:
        await self._options.load_missing(set(queues))
        rows = await self._database.fetch(statement("partition_ids"), queues, partitions, repeatable=True)
        found = [str(row["id"]) for row in rows if row["id"] is not None]
        return found if len(found) == len(queues) else None

    def learn(
        self, queues: Sequence[str], partitions: Sequence[str], believed: list[str] | None, ids: Sequence[object]
    ) -> None:
        """What the database says that the ids are."""
        if not self._cached:
            return
        for index, (queue, partition) in enumerate(zip(queues, partitions, strict=True)):
            true = str(ids[index])
            if believed is None or believed[index] != true:
                self._ids.put(queue, partition, true, self._clock.monotonic())

    def doubt(self, queues: Sequence[str], partitions: Sequence[str]) -> None:
        """The database failed with these."""
        for queue, partition in zip(queues, partitions, strict=True):
            self._ids.forget(queue, partition)

    async def demand_encryption(self, queues: str) -> None:
        """The database refused payloads in clear for the queues of this JSON list: ask it for their options."""
        await self._options.correct(_names.decode(queues))
