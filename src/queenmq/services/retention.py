"""Retention and eviction: deletes old messages in bounded steps, each a short transaction of its own.

Several servers may sweep at once: a partition that another one works on is passed over.
"""

from __future__ import annotations

import logging

from queenmq.config import Settings
from queenmq.engine.activity import Activity
from queenmq.engine.engine import Engine
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


async def _sweep(database: Database, activity: Activity, queues: str, step: str, limit: int) -> int:
    """Run `step` over every queue that `queues` lists, partition by partition. Returns the messages deleted."""
    deleted = 0
    for queue in await database.fetch(statement(queues)):
        after = None
        while True:
            row = await database.fetchrow(statement(step), queue["id"], after, limit)
            if row is None:
                break
            deleted += row["deleted"]
            counts = activity.of(queue["name"])
            if step == "retain":
                counts.retained += row["deleted"]
            else:
                counts.evicted += row["deleted"]
            after = row["next"]
            if after is None:
                break
    if deleted:
        log.info("%s deleted %d messages", step, deleted)
    return deleted


class Retention(Service):
    """Applies `retentionSeconds`, `completedRetentionSeconds` and `ttl`, and removes idle empty partitions."""

    name = "retention"

    def __init__(self, database: Database, engine: Engine, settings: Settings) -> None:
        super().__init__(settings.retention_interval_ms)
        self._database = database
        self._node = engine.node
        self._activity = engine.activity
        self._settings = settings

    async def work(self) -> None:
        limit = self._settings.retention_batch_size
        while await _sweep(self._database, self._activity, "queues_with_retention", "retain", limit) >= limit:
            pass
        days = self._settings.partition_cleanup_days
        while True:
            dropped = await self._database.fetch(statement("drop_idle_partitions"), days, limit)
            self._node.partitions_deleted([(row["queue_name"], row["partition_name"]) for row in dropped])
            if len(dropped) < limit:
                break


class Eviction(Service):
    """Applies `maxWaitTimeSeconds`."""

    name = "eviction"

    def __init__(self, database: Database, engine: Engine, settings: Settings) -> None:
        super().__init__(settings.eviction_interval_ms)
        self._database = database
        self._activity = engine.activity
        self._limit = settings.eviction_batch_size

    async def work(self) -> None:
        while await _sweep(self._database, self._activity, "queues_with_eviction", "evict", self._limit) >= self._limit:
            pass
