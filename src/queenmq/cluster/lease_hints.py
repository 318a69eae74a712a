"""Which other server probably holds the lease of a partition and group.

A hint spares a question whose answer would be "leased". To believe a wrong one keeps a partition waiting, to miss a
right one costs one question; so in doubt there is no hint. It ends with its time, with its holder, with any word of
a release, and a share of the believed ones is to be checked anyway. The database alone gives leases.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.membership import Stamp
from queenmq.cluster.port import Advice, Lease


class _Hint(NamedTuple):
    server: str
    stamp: Stamp
    expires_at: float
    confirmed_at: float
    held: bool  # False: released; kept a while against an acquisition that comes late


class LeaseHints:
    def __init__(self, bounds: ClusterBounds, *, is_alive: Callable[[str], bool], random: Callable[[], float]) -> None:
        self._bounds = bounds
        self._is_alive = is_alive
        self._random = random
        self._hints: OrderedDict[Lease, _Hint] = OrderedDict()  # the oldest first
        self._by_queue: dict[str, dict[str, set[str]]] = {}
        self._by_server: dict[str, set[Lease]] = {}
        self.used = 0
        self.checked = 0
        self.wrong = 0
        self.of_the_dead = 0
        self.expired = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._hints)

    def acquired(self, server: str, stamp: Stamp, lease: Lease, ttl_s: float, now: float) -> None:
        """Another server says that it holds the lease."""
        known = self._hints.get(lease)
        if known is not None and known.server == server and known.stamp > stamp:
            return
        ttl_s = min(ttl_s, self._bounds.lease_hint_longest_s)
        self._put(lease, _Hint(server, stamp, now + ttl_s, now, True))

    def released(self, server: str, stamp: Stamp, lease: Lease, now: float) -> None:
        known = self._hints.get(lease)
        if known is not None and known.server == server and known.stamp > stamp:
            return
        self._put(lease, _Hint(server, stamp, now + self._bounds.lease_release_memory_s, now, False))

    def advice(self, queue: str, partition: str, group: str, now: float) -> Advice:
        lease = (queue, partition, group)
        hint = self._hints.get(lease)
        if hint is None or not hint.held:
            return Advice.TRY
        if hint.expires_at <= now:
            self.expired += 1
        elif not self._is_alive(hint.server):
            self.of_the_dead += 1
        else:
            self.used += 1
            due = now - hint.confirmed_at >= self._bounds.verify_after_s
            return Advice.VERIFY if due or self._random() < self._bounds.verify_share else Advice.SKIP
        self._remove(lease)
        return Advice.TRY

    def verified(self, queue: str, partition: str, group: str, now: float, *, was_wrong: bool) -> None:
        """What the database said where the advice was to verify, or without having been asked."""
        lease = (queue, partition, group)
        hint = self._hints.get(lease)
        self.checked += 1
        if was_wrong:
            self.wrong += 1
            self.forget(queue, partition, group)
        elif hint is not None:
            self._hints[lease] = hint._replace(confirmed_at=now)

    def believes(self, queue: str, partition: str, group: str) -> bool:
        """Whether there is a hint that another server holds the lease."""
        hint = self._hints.get((queue, partition, group))
        return hint is not None and hint.held

    def forget(self, queue: str, partition: str, group: str) -> None:
        """For instance because this server got the lease itself."""
        if (queue, partition, group) in self._hints:
            self._remove((queue, partition, group))

    def forget_partition(self, queue: str, partition: str) -> None:
        for group in list(self._by_queue.get(queue, {}).get(partition, ())):
            self._remove((queue, partition, group))

    def forget_queue(self, queue: str) -> None:
        """Costs what the queue has here."""
        for partition in list(self._by_queue.get(queue, ())):
            self.forget_partition(queue, partition)

    def forget_server(self, server: str) -> None:
        for lease in list(self._by_server.get(server, ())):
            self._remove(lease)

    def held_by(self, server: str) -> int:
        return sum(self._hints[lease].held for lease in self._by_server.get(server, ()))

    def expire(self, now: float) -> None:
        for lease in [lease for lease, hint in self._hints.items() if hint.expires_at <= now]:
            self._remove(lease)
            self.expired += 1

    def statistics(self) -> dict[str, object]:
        return {
            "size": len(self._hints),
            "max_size": self._bounds.lease_hints_max,
            "hints_used": self.used,
            "hints_checked": self.checked,
            "hints_wrong": self.wrong,
            "accuracy": 1.0 - self.wrong / self.checked if self.checked else None,
            "hints_of_dead_servers": self.of_the_dead,
            "expired": self.expired,
            "evictions": self.evictions,
        }

    def _put(self, lease: Lease, hint: _Hint) -> None:
        if lease in self._hints:
            self._remove(lease)
        self._hints[lease] = hint
        queue, partition, group = lease
        self._by_queue.setdefault(queue, {}).setdefault(partition, set()).add(group)
        self._by_server.setdefault(hint.server, set()).add(lease)
        if len(self._hints) > self._bounds.lease_hints_max:
            self._remove(next(iter(self._hints)))
            self.evictions += 1

    def _remove(self, lease: Lease) -> None:
        server = self._hints.pop(lease).server
        leases = self._by_server[server]
        leases.discard(lease)
        if not leases:
            del self._by_server[server]
        queue, partition, group = lease
        partitions = self._by_queue[queue]
        partitions[partition].discard(group)
        if not partitions[partition]:
            del partitions[partition]
            if not partitions:
                del self._by_queue[queue]
