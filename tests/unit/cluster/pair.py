"""Servers that hand each other their packets, without a network."""

from __future__ import annotations

from collections.abc import Iterable

from queenmq.cluster.events import Event
from queenmq.cluster.keys import KeyRing, parse_secret
from queenmq.cluster.membership import Address
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.settings import ClusterSettings
from queenmq.cluster.state import SharedState

RING = KeyRing(parse_secret("5e" * 32))
AT_ONCE = ClusterSettings(deregister_after_s=0)


class Street:
    """One server a house; the house number is its port."""

    def __init__(self, *names: str, settings: ClusterSettings = AT_ONCE) -> None:
        self.now = 1000.0
        self.settings = settings
        self.servers: dict[Address, SharedState] = {}
        self.events: dict[str, list[Event]] = {}
        self._doors = [("host", number) for number in range(1, len(names) + 1)]
        for name, door in zip(names, self._doors, strict=True):
            self.servers[door] = self.boot(name, 1)
            self.events[name] = []

    def __getitem__(self, name: str) -> SharedState:
        return next(server for server in self.servers.values() if server.server_id == name)

    def boot(self, name: str, epoch: int) -> SharedState:
        return SharedState(self.settings, RING, name, epoch, random=lambda: 0.5, peers=self._doors)

    def restart(self, name: str, epoch: int) -> SharedState:
        door = self.door(name)
        self.servers[door] = self.boot(name, epoch)
        return self.servers[door]

    def door(self, name: str) -> Address:
        return next(door for door, server in self.servers.items() if server.server_id == name)

    def carry(self, sender: str, outgoing: Iterable[Outgoing]) -> None:
        """Deliver at once, in order."""
        for address, datagram in outgoing:
            receiver = self.servers.get(address)
            if receiver is not None:
                self.events[receiver.server_id] += receiver.receive(datagram, self.door(sender), self.now)

    def pass_time(self, seconds: float, *, silent: Iterable[str] = ()) -> None:
        """Tick everybody but the silent, four times a second."""
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            for server in list(self.servers.values()):
                if server.server_id not in silent:
                    ticked = server.tick(self.now)
                    self.events[server.server_id] += ticked.events
                    self.carry(server.server_id, ticked.outgoing)

    def meet(self) -> Street:
        """Until everybody knows everybody."""
        self.pass_time(1.5)
        for seen in self.events.values():
            seen.clear()
        return self
