"""The caches together, and what must go from all of them at once."""

from __future__ import annotations

from collections.abc import Callable

from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.maintenance import Maintenance
from queenmq.cluster.partition_ids import PartitionIds
from queenmq.cluster.presence import Presence
from queenmq.cluster.queue_configs import QueueConfigs
from queenmq.cluster.settings import ClusterSettings


class Tiers:
    def __init__(
        self, settings: ClusterSettings, *, is_alive: Callable[[str], bool], random: Callable[[], float]
    ) -> None:
        self.configs = QueueConfigs(settings)
        self.presence = Presence(settings)
        self.partition_ids = PartitionIds(settings)
        self.lease_hints = LeaseHints(settings, is_alive=is_alive, random=random)
        self.maintenance = Maintenance()

    def delete_queue(self, queue: str, version: int, now: float) -> bool:
        """The queue was deleted as of that database version. True if it is news that it is gone.

        Everything that hangs on it goes even if the queue has been made anew since: it may be of the former one.
        """
        self.partition_ids.forget_queue(queue)
        self.lease_hints.forget_queue(queue)
        self.presence.forget_queue(queue)
        return self.configs.deleted(queue, version, now)

    def delete_partition(self, queue: str, partition: str) -> None:
        self.partition_ids.forget(queue, partition)
        self.lease_hints.forget_partition(queue, partition)

    def forget_server(self, server: str) -> None:
        """It died or began a new life: nothing that it said of itself holds."""
        self.presence.forget_server(server)
        self.lease_hints.forget_server(server)

    def expire(self, now: float) -> None:
        self.configs.expire(now)
        self.presence.expire(now)
        self.lease_hints.expire(now)
