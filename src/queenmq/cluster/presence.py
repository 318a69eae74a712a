"""Which other servers have consumers of which queue, so that a push notifies only them.

What a server says of itself is ordered by its (boot epoch, sequence); a part of a snapshot speaks for every queue in
its range of hashes. Claims that no snapshot confirms fade. A server that claims more than there is room for counts as
interested in everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.membership import Stamp
from queenmq.cluster.packing import name_hash

_MOST_PARTS = 64


class _Claim:
    """What a server last said of a queue. That it has no consumers is kept too, against what comes late."""

    __slots__ = ("confirmed_at", "hash", "present", "stamp")

    def __init__(self, queue: str) -> None:
        self.hash = name_hash(queue)
        self.stamp: Stamp = (0, 0)
        self.present = False
        self.confirmed_at = 0.0


class Presence:
    def __init__(self, bounds: ClusterBounds) -> None:
        self._bounds = bounds
        self._covered: dict[str, dict[tuple[int, int], Stamp]] = {}  # by server, the newest parts of its snapshots
        self._by_server: dict[str, dict[str, _Claim]] = {}
        self._by_queue: dict[str, dict[str, _Claim]] = {}
        self._size = 0
        self._overflowing: dict[str, float] = {}  # until when
        self.refused = 0
        self.registrations = self.deregistrations = 0  # queues, as other servers have sent them

    def __len__(self) -> int:
        return self._size

    def servers_for(self, queue: str) -> list[str] | None:
        """The servers that have consumers of the queue; None if nothing is known of it."""
        claims = self._by_queue.get(queue)
        if claims is None:
            return None
        servers = [server for server, claim in claims.items() if claim.present]
        if self._overflowing:
            servers += [server for server in self._overflowing if server not in servers]
        return servers

    def queues_of(self, server: str) -> set[str]:
        return {queue for queue, claim in self._by_server.get(server, {}).items() if claim.present}

    def registered(self, server: str, stamp: Stamp, queues: Iterable[str], now: float) -> None:
        for queue in queues:
            self._claim(server, stamp, queue, True, now)

    def deregistered(self, server: str, stamp: Stamp, queues: Iterable[str], now: float) -> None:
        for queue in queues:
            self.deregistrations += 1
            self._claim(server, stamp, queue, False, now)

    def snapshot(self, server: str, stamp: Stamp, low: int, high: int, queues: Iterable[str], now: float) -> None:
        """`queues` are all of that server whose hash is in `low` to below `high`."""
        named = dict.fromkeys(queues)
        for queue, claim in self._by_server.get(server, {}).items():
            if low <= claim.hash < high and queue not in named and claim.stamp < stamp:
                claim.stamp = stamp
                if claim.present:
                    claim.present, claim.confirmed_at = False, now
        self.registered(server, stamp, named, now)
        covered = self._covered.setdefault(server, {})
        covered[low, high] = max(stamp, covered.pop((low, high), stamp))
        if len(covered) > _MOST_PARTS:
            del covered[next(iter(covered))]

    def forget_server(self, server: str) -> None:
        self._covered.pop(server, None)
        self._overflowing.pop(server, None)
        for queue in self._by_server.pop(server, {}):
            self._unlink(self._by_queue, queue, server)
            self._size -= 1

    def forget_queue(self, queue: str) -> None:
        for server in self._by_queue.pop(queue, {}):
            self._unlink(self._by_server, server, queue)
            self._size -= 1

    def expire(self, now: float) -> None:
        """Drop what was not confirmed for some time."""
        oldest = now - self._bounds.presence_fade_s
        faded = [
            (server, queue)
            for server, claims in self._by_server.items()
            for queue, claim in claims.items()
            if claim.confirmed_at <= oldest
        ]
        for server, queue in faded:
            self._unlink(self._by_server, server, queue)
            self._unlink(self._by_queue, queue, server)
        self._size -= len(faded)
        for server in [server for server, until in self._overflowing.items() if until <= now]:
            del self._overflowing[server]

    def statistics(self) -> dict[str, object]:
        return {
            "queues_tracked": len(self._by_queue),
            "servers_tracked": len(self._by_server),
            "registrations_received": self.registrations,
            "deregistrations_received": self.deregistrations,
            "entries": self._size,
            "max_entries": self._bounds.presence_max,
            "entries_refused": self.refused,
        }

    def _claim(self, server: str, stamp: Stamp, queue: str, present: bool, now: float) -> None:
        claims = self._by_server.get(server)
        claim = None if claims is None else claims.get(queue)
        if claim is None:
            claim = _Claim(queue)
            if self._is_outdated(server, stamp, claim.hash):
                return
            if self._size >= self._bounds.presence_max:
                self._refuse(server, present, now)
                return
            self._by_server.setdefault(server, {})[queue] = claim
            self._by_queue.setdefault(queue, {})[server] = claim
            self._size += 1
        elif claim.stamp >= stamp:
            return
        claim.stamp, claim.present, claim.confirmed_at = stamp, present, now

    def _is_outdated(self, server: str, stamp: Stamp, hash: int) -> bool:
        """A newer snapshot of the server has not named the queue."""
        parts = self._covered.get(server, {}).items()
        return any(low <= hash < high and stamp < newer for (low, high), newer in parts)

    def _refuse(self, server: str, present: bool, now: float) -> None:
        self.refused += 1
        if present:
            self._overflowing[server] = now + self._bounds.presence_fade_s

    @staticmethod
    def _unlink(index: dict[str, dict[str, _Claim]], key: str, member: str) -> None:
        claims = index[key]
        del claims[member]
        if not claims:
            del index[key]
