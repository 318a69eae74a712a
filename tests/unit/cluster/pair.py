"""Servers that hand each other their packets, without a network."""

from __future__ import annotations

from collections.abc import Iterable

from queenmq.broker.caches import CacheBounds
from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import Event, deliver
from queenmq.cluster.keys import KeyRing, parse_secret
from queenmq.cluster.membership import Address
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.state import SharedState
from unit.broker.remembering import Remembering

RING = KeyRing(parse_secret("5e" * 32))
AT_ONCE = ClusterBounds(deregister_after_s=0)


class Street:
    """One server a house; the house number is its port."""

    def __init__(self, *names: str, bounds: ClusterBounds = AT_ONCE) -> None:
        self.now = 1000.0
        self.bounds = bounds
        self.servers: dict[Address, SharedState] = {}
        self.events: dict[str, list[Event]] = {}
        self.caches = {name: Remembering(CacheBounds(), self) for name in names}
        self._silent: set[str] = set()
        self._doors = [("10.0.0.9", number) for number in range(1, len(names) + 1)]
        for name, door in zip(names, self._doors, strict=True):
            self.servers[door] = self.boot(name, 1, door)
            self.events[name] = []

    def __getitem__(self, name: str) -> SharedState:
        return next(server for server in self.servers.values() if server.server_id == name)

    def boot(self, name: str, epoch: int, door: Address) -> SharedState:
        return SharedState(
            self.bounds, RING, name, epoch, random=lambda: 0.5, peers=self._doors, own_address=lambda _: door
        )

    def restart(self, name: str, epoch: int) -> SharedState:
        door = self.door(name)
        self.servers[door] = self.boot(name, epoch, door)
        return self.servers[door]

    def door(self, name: str) -> Address:
        return next(door for door, server in self.servers.items() if server.server_id == name)

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def carry(self, sender: str, outgoing: Iterable[Outgoing]) -> None:
        """Deliver at once, in order."""
        for address, datagram in outgoing:
            receiver = self.servers.get(address)
            if receiver is not None:
                events = receiver.receive(datagram, self.door(sender), self.now)
                self.events[receiver.server_id] += events
                for event in events:
                    deliver(self.caches[receiver.server_id], event)
                if receiver.has_replies and receiver.server_id not in self._silent:
                    self._tick(receiver)

    def pass_time(self, seconds: float, *, silent: Iterable[str] = ()) -> None:
        """Tick everybody but the silent, four times a second."""
        self._silent = set(silent)
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            for server in list(self.servers.values()):
                if server.server_id not in self._silent:
                    self._tick(server)
        self._silent = set()

    def _tick(self, server: SharedState) -> None:
        ticked = server.tick(self.now)
        self.events[server.server_id] += ticked.events
        self.carry(server.server_id, ticked.outgoing)

    def meet(self) -> Street:
        """Until everybody knows everybody."""
        self.pass_time(1.5)
        for seen in self.events.values():
            seen.clear()
        return self
