"""Where a merged push goes: the ids of its partitions, and what is to be known of its queues.

Both come from the caches of the node. `queen.push` finds out for itself what they do not know or have wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.cluster.node import Node
from queenmq.engine.queue_settings import QueueSettings
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_names = msgspec.json.Decoder(list[str])


class Places:
    def __init__(self, database: Database, node: Node, settings: QueueSettings, *, cached: bool) -> None:
        self._database = database
        self._node = node
        self._settings = settings
        self._cached = cached

    async def find(self, queues: Sequence[str], partitions: Sequence[str]) -> list[str] | None:
        """The ids of these partitions if all are known, in order; and have the options of their queues at hand."""
        await self._settings.know(set(queues))
        if not self._cached:
            rows = await self._database.fetch(statement("partition_ids"), queues, partitions)
            found = [str(row["id"]) for row in rows if row["id"] is not None]
            return found if len(found) == len(queues) else None
        now, known = self._node.now, self._node.state.tiers.partition_ids
        ids = [known.get(queue, partition, now) for queue, partition in zip(queues, partitions, strict=True)]
        return None if None in ids else ids  # type: ignore[return-value]

    def learn(
        self, queues: Sequence[str], partitions: Sequence[str], believed: list[str] | None, ids: Sequence[object]
    ) -> None:
        """What the database says that the ids are."""
        if not self._cached:
            return
        now, known = self._node.now, self._node.state.tiers.partition_ids
        for place, (queue, partition) in enumerate(zip(queues, partitions, strict=True)):
            true = str(ids[place])
            if believed is None or believed[place] != true:
                known.put(queue, partition, true, now)

    def doubt(self, queues: Sequence[str], partitions: Sequence[str]) -> None:
        """The database failed with these."""
        known = self._node.state.tiers.partition_ids
        for queue, partition in zip(queues, partitions, strict=True):
            known.forget(queue, partition)

    async def demand_encryption(self, queues: str) -> None:
        """The database refused payloads in clear for the queues of this JSON list: ask it for their options."""
        await self._settings.correct(_names.decode(queues))
