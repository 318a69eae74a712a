"""What this server remembers of the database: options of queues, ids of partitions, maintenance switches. No I/O.

A change that is made here (`set_…`, `delete_…`) is told to the other servers; what they tell (`heard_…`) is ordered by
the versions of the database, so that the newest wins whoever tells it, and in whatever order it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queenmq.broker.option_cache import OptionCache
from queenmq.broker.partition_ids import PartitionIds
from queenmq.broker.switches import Switches
from queenmq.clock import Clock
from queenmq.cluster.port import Cluster
from queenmq.core.maintenance import Switch
from queenmq.core.options import OptionValues


@dataclass(frozen=True, slots=True)
class CacheBounds:
    queues: int = 10_000
    tombstones: int = 10_000
    tombstone_s: float = 180.0  # longer than two refreshes
    partition_ids: int = 10_000
    partition_id_ttl_s: float = 300.0


class Caches:
    def __init__(self, bounds: CacheBounds, clock: Clock, cluster: Cluster) -> None:
        self._clock = clock
        self._cluster = cluster
        self.options = OptionCache(bounds.queues, bounds.tombstones, bounds.tombstone_s)
        self.partition_ids = PartitionIds(bounds.partition_ids, bounds.partition_id_ttl_s)
        self.switches = Switches()

    # Changed here

    def set_options(self, queue: str, options: OptionValues, version: int) -> None:
        """The queue was made or changed here, with that database version."""
        self.options.loaded(queue, options, version, self._clock.monotonic())
        self._cluster.config_set(queue, options, version)

    def delete_queue(self, queue: str, version: int) -> None:
        self.heard_deletion(queue, version)
        self._cluster.config_deleted(queue, version)

    def delete_partitions(self, partitions: Sequence[tuple[str, str]]) -> None:
        for queue, partition in partitions:
            self.partition_ids.forget(queue, partition)
        self._cluster.partitions_deleted(partitions)

    def set_maintenance(self, switch: Switch, on: bool, version: int) -> None:
        self.switches.heard(switch, on, version, self._clock.monotonic())
        self._cluster.maintenance_set(switch, on, version)

    # Heard from another server

    def heard_config(self, queue: str, options: OptionValues, version: int) -> bool:
        """True if it is news."""
        return self.options.heard(queue, options, version, self._clock.monotonic())

    def heard_deletion(self, queue: str, version: int) -> bool:
        """True if it is news that the queue is gone. The ids of its partitions go even if the queue has been made anew
        since: they may be of the former one."""
        self.partition_ids.forget_queue(queue)
        return self.options.deleted(queue, version, self._clock.monotonic())

    def heard_partition_deletion(self, queue: str, partition: str) -> None:
        self.partition_ids.forget(queue, partition)

    def heard_maintenance(self, switch: Switch, on: bool, version: int) -> bool:
        """True if the switch has moved."""
        return self.switches.heard(switch, on, version, self._clock.monotonic())

    def statistics(self) -> dict[str, object]:
        return {
            "queue_config_cache": self.options.statistics(),
            "partition_id_cache": self.partition_ids.statistics(),
            "maintenance_mode": self.switches.is_on(Switch.PUSH),
            "pop_maintenance_mode": self.switches.is_on(Switch.POP),
        }

    def expire(self) -> None:
        self.options.expire(self._clock.monotonic())
