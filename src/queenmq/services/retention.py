"""Retention and eviction: deletes old messages in bounded steps, each a short transaction of its own.

A run of retention is an operation, of which there is one at a time. Several servers may evict at once: a partition
that another one works on is passed over.
"""

from __future__ import annotations

import logging

from queenmq.broker.broker import Broker
from queenmq.config import Settings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


class Retention(Service):
    """Applies `retentionSeconds`, `completedRetentionSeconds` and `ttl`, and removes idle empty partitions."""

    name = "retention"

    def __init__(self, database: Database, broker: Broker, settings: Settings) -> None:
        super().__init__(settings.retention.interval_ms)
        self._operations = broker.operation_runner
        self._settings = settings

    async def work(self) -> None:
        await self._operations.retain(
            self._settings.retention.batch_size, self._settings.retention.partition_cleanup_days
        )


class Eviction(Service):
    """Applies `maxWaitTimeSeconds`."""

    name = "eviction"

    def __init__(self, database: Database, broker: Broker, settings: Settings) -> None:
        super().__init__(settings.retention.eviction_interval_ms)
        self._database = database
        self._activity = broker.activity
        self._limit = settings.retention.eviction_batch_size

    async def work(self) -> None:
        while await self._sweep() >= self._limit:
            pass

    async def _sweep(self) -> int:
        """Once over every queue, partition by partition. Returns the messages deleted."""
        deleted = 0
        for queue in await self._database.fetch(statement("queues_with_eviction")):
            after = None
            while row := await self._database.fetchrow(statement("evict"), queue["id"], after, self._limit):
                deleted += row["deleted"]
                self._activity.of(queue["name"]).evicted += row["deleted"]
                after = row["next"]
                if after is None:
                    break
        if deleted:
            log.info("evicted %d messages", deleted)
        return deleted
