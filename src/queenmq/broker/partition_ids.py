"""The ids of partitions, by queue and name. The least recently used go first, and each has its time. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class _Known(NamedTuple):
    id: str
    expires_at: float


class PartitionIds:
    def __init__(self, most: int, ttl_s: float) -> None:
        self._max = most
        self._ttl_s = ttl_s
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()  # the least recently used first
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
        self._known[key] = _Known(partition_id, now + self._ttl_s)
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
