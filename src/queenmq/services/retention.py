"""Retention and eviction: deletes old messages in bounded steps, each a short transaction of its own.

A run of retention is an operation, of which there is one at a time. Several servers may evict at once: a partition
that another one works on is passed over.
"""

from __future__ import annotations

import logging

from queenmq.broker.activity import Activity
from queenmq.broker.operation_runner import OperationRunner
from queenmq.clock import SYSTEM, Clock
from queenmq.config import RetentionSettings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


class Retention(Service):
    """Applies `retentionSeconds`, `completedRetentionSeconds` and `ttl`, and removes idle empty partitions."""

    name = "retention"

    def __init__(self, operations: OperationRunner, settings: RetentionSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings.interval_ms, clock)
        self._operations = operations
        self._settings = settings

    async def work(self) -> None:
        await self._operations.retain(self._settings.batch_size, self._settings.partition_cleanup_days)


class Eviction(Service):
    """Applies `maxWaitTimeSeconds`."""

    name = "eviction"

    def __init__(
        self, database: Database, activity: Activity, settings: RetentionSettings, clock: Clock = SYSTEM
    ) -> None:
        super().__init__(settings.eviction_interval_ms, clock)
        self._database = database
        self._activity = activity
        self._limit = settings.eviction_batch_size

    async def work(self) -> None:
        while await self._sweep() >= self._limit:
            pass

    async def _sweep(self) -> int:
        """Once over what is due in every queue. Returns the messages deleted."""
        deleted = 0
        for queue in await self._database.fetch(statement("queues_with_eviction")):
            since, after = None, None
            while row := await self._database.fetchrow(statement("evict"), queue["id"], since, after, self._limit):
                deleted += row["deleted"]
                if row["deleted"]:
                    self._activity.of(queue["name"]).evicted += row["deleted"]
                since, after = row["since"], row["next"]
                if after is None:
                    break
        if deleted:
            log.info("evicted %d messages", deleted)
        return deleted
