"""Who the other servers are, where they are, and which of them live.

Identities are learned from signed heartbeats; the address is where the packet came from. Addresses that were
configured, or that a living member names as those of its siblings, are greeted until somebody answers from there.
Whether a packet is genuine and new is decided before it comes here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from queenmq.cluster.messages import Heartbeat
from queenmq.cluster.settings import ClusterSettings

Address = tuple[str, int]
Stamp = tuple[int, int]  # (boot epoch, sequence): orders what one sender says

_MAX_OWN_ADDRESSES = 64


class Change(Enum):
    RESTARTED = auto()
    RETURNED = auto()


@dataclass(slots=True)
class Member:
    id: str
    address: Address
    stamp: Stamp
    heard_at: float
    heartbeat: Heartbeat
    heartbeat_at: float
    alive: bool = True

    @property
    def http_address(self) -> Address:
        return (self.heartbeat.http_host or self.address[0], self.heartbeat.http_port)


class Membership:
    def __init__(self, settings: ClusterSettings, peers: Iterable[Address] = ()) -> None:
        self._settings = settings
        self._members: dict[str, Member] = {}
        self._peers: dict[Address, None] = dict.fromkeys(peers)
        self._own: dict[Address, None] = {}
        self._reachable: tuple[Address, ...] | None = None
        self.heartbeats_received = 0
        self.restarts_detected = 0

    def __len__(self) -> int:
        return len(self._members)

    def get(self, server: str) -> Member | None:
        return self._members.get(server)

    def members(self) -> list[Member]:
        return list(self._members.values())

    def is_alive(self, server: str) -> bool:
        member = self._members.get(server)
        return member is not None and member.alive

    def set_peers(self, peers: Iterable[Address]) -> None:
        """The configured addresses, when names resolve to others than before."""
        self._peers = dict.fromkeys(peers)
        self._reachable = None

    def heard(self, server: str, stamp: Stamp, source: Address, now: float) -> Change | None:
        """A genuine packet of a server came in. One that has not sent a heartbeat yet stays unknown."""
        member = self._members.get(server)
        if member is None:
            return None
        change = Change.RETURNED if not member.alive else None
        if member.stamp[0] != stamp[0]:
            change = Change.RESTARTED
            self.restarts_detected += 1
        if change is Change.RESTARTED or stamp > member.stamp:
            if member.address != source:
                self._reachable = None
            member.stamp, member.address = stamp, source
        if change is not None:
            member.alive = True
            self._reachable = None
        member.heard_at = now
        return change

    def heartbeat(self, server: str, stamp: Stamp, source: Address, heartbeat: Heartbeat, now: float) -> bool:
        """A heartbeat of a server that `heard` was told of. True if the server was unknown and is a member now.

        False with the server still unknown means that there is no room for it.
        """
        self.heartbeats_received += 1
        member = self._members.get(server)
        joined = member is None and self._make_room()
        if joined:
            member = self._members[server] = Member(server, source, stamp, now, heartbeat, now)
            self._reachable = None
        if member is None:
            return False
        if stamp >= member.stamp:
            if heartbeat.sibling_ports != member.heartbeat.sibling_ports:
                self._reachable = None
            member.heartbeat, member.heartbeat_at = heartbeat, now
        return joined

    def check(self, now: float) -> list[str]:
        """Who has died since the last time. The long dead are forgotten."""
        died = []
        for member in self.members():
            silent_s = now - member.heard_at
            if member.alive and silent_s >= self._settings.dead_after_s:
                member.alive = False
                died.append(member.id)
            elif not member.alive and silent_s >= self._settings.forget_after_s:
                del self._members[member.id]
                self._reachable = None
        if died:
            self._reachable = None
        return died

    def addresses(self, servers: Iterable[str]) -> tuple[Address, ...]:
        """Of those that live."""
        members = self._members
        return tuple(m.address for server in servers if (m := members.get(server)) is not None and m.alive)

    def reachable(self) -> tuple[Address, ...]:
        """Who might want to hear: every living member, and every address whose owner is not known yet."""
        if self._reachable is None:
            living = dict.fromkeys(m.address for m in self._members.values() if m.alive)
            taken = {m.address for m in self._members.values()} | self._own.keys()
            strangers = [a for a in (*self._peers, *self._siblings()) if a not in taken]
            self._reachable = tuple(dict.fromkeys((*living, *strangers)))
        return self._reachable

    def everyone(self) -> tuple[Address, ...]:
        """All addresses, also of the dead: a heartbeat there is how both learn that a broken network has healed."""
        members = (member.address for member in self._members.values())
        return tuple(dict.fromkeys((*members, *self._peers, *self._siblings())))

    def own_packet_from(self, source: Address) -> None:
        """A packet of ours came back from there: the address is one of ours, and only heartbeats go there.

        Heartbeats still do, because anybody can send a packet back from an address that is not ours.
        """
        if source not in self._own and len(self._own) < _MAX_OWN_ADDRESSES:
            self._own[source] = None
            self._reachable = None

    def _make_room(self) -> bool:
        if len(self._members) < self._settings.max_members:
            return True
        dead = [member for member in self._members.values() if not member.alive]
        if not dead:
            return False
        del self._members[min(dead, key=lambda member: member.heard_at).id]
        return True

    def _siblings(self) -> Iterable[Address]:
        """The addresses that living members name as those of their siblings."""
        named = (
            (member.address[0], port)
            for member in self._members.values()
            if member.alive
            for port in member.heartbeat.sibling_ports
        )
        return islice(named, self._settings.max_greeted)
