"""What this server remembers of the database: options of queues, ids of partitions, maintenance switches. No I/O.

A change that is made here (`set_…`, `delete_…`) is sent to the other servers; what they send (`receive_…`) is ordered
by the versions of the database, so that the newest wins, from whichever server and in whichever order it arrives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
        self.receive_deletion(queue, version)
        self._cluster.config_deleted(queue, version)

    def delete_partitions(self, partitions: Sequence[tuple[str, str]]) -> None:
        for queue, partition in partitions:
            self.partition_ids.forget(queue, partition)
        self._cluster.partitions_deleted(partitions)

    def set_maintenance(self, switch: Switch, on: bool, version: int) -> None:
        self.switches.receive(switch, on, version, self._clock.monotonic())
        self._cluster.maintenance_set(switch, on, version)

    # Received from another server

    def receive_config(self, queue: str, options: OptionValues, version: int) -> bool:
        """True if it is news."""
        return self.options.receive(queue, options, version, self._clock.monotonic())

    def receive_deletion(self, queue: str, version: int) -> bool:
        """True if it is news that the queue is gone. The ids of its partitions go even if the queue has been made anew
        since: they may be of the former one."""
        self.partition_ids.forget_queue(queue)
        return self.options.deleted(queue, version, self._clock.monotonic())

    def receive_partition_deletion(self, queue: str, partition: str) -> None:
        self.partition_ids.forget(queue, partition)

    def receive_maintenance(self, switch: Switch, on: bool, version: int) -> bool:
        """True if the switch has moved."""
        return self.switches.receive(switch, on, version, self._clock.monotonic())

    def statistics(self) -> dict[str, object]:
        return {
            "queue_config_cache": self.options.statistics(),
            "partition_id_cache": self.partition_ids.statistics(),
            "maintenance_mode": self.switches.is_on(Switch.PUSH),
            "pop_maintenance_mode": self.switches.is_on(Switch.POP),
        }

    def expire(self) -> None:
        self.options.expire(self._clock.monotonic())


class OptionRow(NamedTuple):
    """A queue as the database has it."""

    queue: str
    options: OptionValues
    version: int


class _KnownOptions(NamedTuple):
    options: OptionValues
    version: int
    received_at: float


class _Tombstone(NamedTuple):
    version: int
    received_at: float


class OptionCache:
    """The options of queues. The newest database version wins, from whichever server.

    A deletion leaves a tombstone for a while, so that an older SET that comes late does not bring the queue back. What
    the database says at a refresh is the truth, except where something newer was received since the read began.
    """

    def __init__(self, most: int, most_tombstones: int, tombstone_s: float) -> None:
        self._most = most
        self._most_tombstones = most_tombstones
        self._tombstone_s = tombstone_s
        self._known: OrderedDict[str, _KnownOptions] = OrderedDict()  # the least recently used first
        self._tombstones: OrderedDict[str, _Tombstone] = OrderedDict()  # the oldest first
        self._horizon = -1
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, queue: str) -> OptionValues | None:
        known = self._known.get(queue)
        if known is None:
            self.misses += 1
            return None
        self.hits += 1
        self._known.move_to_end(queue)
        return known.options

    def has_all(self, queues: Iterable[str]) -> bool:
        """Whether the options of all these queues are known; counted like as many questions if they are."""
        known = self._known
        if not all(map(known.__contains__, queues)):
            return False
        for queue in queues:
            self.hits += 1
            known.move_to_end(queue)
        return True

    def peek(self, queue: str) -> OptionValues | None:
        """The options without counting the question."""
        known = self._known.get(queue)
        return None if known is None else known.options

    def version(self, queue: str) -> int | None:
        known = self._known.get(queue)
        return None if known is None else known.version

    def receive(self, queue: str, options: OptionValues, version: int, now: float) -> bool:
        """Another server says so. True if it is news."""
        if version <= self._horizon and queue not in self._known:
            return False  # the last refresh would have had it
        return self.loaded(queue, options, version, now)

    def loaded(self, queue: str, options: OptionValues, version: int, now: float) -> bool:
        """The database says so. True if it is news."""
        known = self._known.get(queue)
        tombstone = self._tombstones.get(queue)
        if (known is not None and known.version >= version) or (tombstone is not None and tombstone.version >= version):
            return False
        self._tombstones.pop(queue, None)
        self._put(queue, _KnownOptions(options, version, now))
        return known is None or known.options != options

    def corrected(self, queue: str, options: OptionValues, version: int, now: float) -> None:
        """The database says so, and has shown that what was believed is wrong, whatever version it claimed."""
        self._tombstones.pop(queue, None)
        self._put(queue, _KnownOptions(options, version, now))

    def forget(self, queue: str) -> None:
        """The database does not know the queue, whatever was received about it."""
        self._known.pop(queue, None)

    def deleted(self, queue: str, version: int, now: float) -> bool:
        """True if it is news that the queue is gone."""
        known = self._known.get(queue)
        tombstone = self._tombstones.get(queue)
        if (known is not None and known.version > version) or (tombstone is not None and tombstone.version >= version):
            return False
        self._known.pop(queue, None)
        self._tombstones[queue] = _Tombstone(version, now)
        self._tombstones.move_to_end(queue)
        if len(self._tombstones) > self._most_tombstones:
            self._tombstones.popitem(last=False)
        return True

    def replace_all(
        self, rows: Iterable[OptionRow], version_horizon: int, read_started_at: float, now: float
    ) -> list[str]:
        """All that the database has; it has nothing else up to `version_horizon`. Returns the queues that changed."""

        def newer(known: _KnownOptions | _Tombstone | None) -> bool:
            return known is not None and known.version > version_horizon and known.received_at >= read_started_at

        self._horizon = version_horizon
        present = {row.queue: row for row in rows}
        gone = [queue for queue, known in self._known.items() if queue not in present and not newer(known)]
        for queue in gone:
            del self._known[queue]
        return gone + [
            queue
            for queue, row in present.items()
            if not newer(self._known.get(queue)) and not newer(self._tombstones.get(queue)) and self._take(row, now)
        ]

    def expire(self, now: float) -> None:
        while self._tombstones:
            queue, tombstone = next(iter(self._tombstones.items()))
            if now - tombstone.received_at < self._tombstone_s:
                break
            del self._tombstones[queue]

    def statistics(self) -> dict[str, object]:
        asked = self.hits + self.misses
        return {
            "size": len(self._known),
            "max_size": self._most,
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": self.hits / asked if asked else 0.0,
            "evictions": self.evictions,
            "tombstones": len(self._tombstones),
        }

    def _take(self, row: OptionRow, now: float) -> bool:
        """What a refresh brings. True if it is news."""
        known = self._known.get(row.queue)
        if known is None and len(self._known) >= self._most:
            return False  # what is in use is worth more than what nobody has asked for
        self._tombstones.pop(row.queue, None)
        self._put(row.queue, _KnownOptions(row.options, row.version, now))
        return known is None or known.options != row.options

    def _put(self, queue: str, known: _KnownOptions) -> None:
        self._known[queue] = known
        if len(self._known) > self._most:
            self._known.popitem(last=False)
            self.evictions += 1


class _KnownId(NamedTuple):
    id: str
    expires_at: float


class PartitionIds:
    """The ids of partitions, by queue and name. The least recently used go first, and each has its time."""

    def __init__(self, most: int, ttl_s: float) -> None:
        self._max = most
        self._ttl_s = ttl_s
        self._known: OrderedDict[tuple[str, str], _KnownId] = OrderedDict()  # the least recently used first
        self._by_queue: dict[str, set[str]] = {}
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, queues: Sequence[str], partitions: Sequence[str], now: float) -> list[str] | None:
        """The ids of all these partitions, in order; None if one of them is not known."""
        ids = [self.get(queue, partition, now) for queue, partition in zip(queues, partitions, strict=True)]
        return None if None in ids else ids  # type: ignore[return-value]

    def get(self, queue: str, partition: str, now: float) -> str | None:
        key = (queue, partition)
        known = self._known.get(key)
        if known is not None and known.expires_at <= now:
            self._remove(key)
            self.expired += 1
            known = None
        if known is None:
            self.misses += 1
            return None
        self.hits += 1
        self._known.move_to_end(key)
        return known.id

    def put(self, queue: str, partition: str, partition_id: str, now: float) -> None:
        key = (queue, partition)
        self._known[key] = _KnownId(partition_id, now + self._ttl_s)
        self._known.move_to_end(key)
        self._by_queue.setdefault(queue, set()).add(partition)
        if len(self._known) > self._max:
            self._remove(next(iter(self._known)))
            self.evictions += 1

    def forget(self, queue: str, partition: str) -> None:
        """The partition is gone, or the database did not know the id."""
        if (queue, partition) in self._known:
            self._remove((queue, partition))

    def forget_queue(self, queue: str) -> None:
        """Costs what the queue has here."""
        for partition in self._by_queue.pop(queue, ()):
            del self._known[queue, partition]

    def statistics(self) -> dict[str, object]:
        return {
            "size": len(self._known),
            "max_size": self._max,
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "expired": self.expired,
        }

    def _remove(self, key: tuple[str, str]) -> None:
        del self._known[key]
        partitions = self._by_queue[key[0]]
        partitions.discard(key[1])
        if not partitions:
            del self._by_queue[key[0]]
