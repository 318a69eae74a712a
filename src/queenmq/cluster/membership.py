"""Who the other servers are, where they are, and which of them live.

A server becomes a member, in a new life or at a new address, when it has met a challenge that was sent to that
address; where a packet came from is never believed. An address that the server itself names in the signed answer is
confirmed, and is used before all others: at any other one somebody may stand in between. Addresses that were
configured, or that a living member names as those of its siblings, are greeted until somebody answers from there.
Whether a packet is genuine and new is decided before it comes here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.messages import Heartbeat

Address = tuple[str, int]
Stamp = tuple[int, int]  # (boot epoch, sequence): orders what one sender says

_SILENT_HEARTBEATS = 2.5


class Change(Enum):
    JOINED = auto()
    REFUSED = auto()
    RESTARTED = auto()
    RETURNED = auto()


@dataclass(slots=True, kw_only=True)
class Member:
    id: str
    address: Address
    life: bytes  # what packets to it must carry
    stamp: Stamp
    received_at: float
    heartbeat: Heartbeat
    heartbeat_at: float
    confirmed: bool  # the server itself says that this is its address
    alive: bool = True
    has_left: bool = False  # it has said that it stops

    @property
    def http_address(self) -> Address:
        return (self.heartbeat.http_host or self.address[0], self.heartbeat.http_port)


class Recipient(NamedTuple):
    address: Address
    life: bytes


class Meeting(NamedTuple):
    """A server has met the challenge that was sent to that address; `confirmed`: it says itself that it is there."""

    server: str
    address: Address
    life: bytes
    confirmed: bool


class Membership:
    def __init__(self, bounds: ClusterBounds, peers: Iterable[Address] = ()) -> None:
        self._bounds = bounds
        self._members: dict[str, Member] = {}
        self._peers: dict[Address, None] = dict.fromkeys(peers)
        self._aliases: dict[Address, str] = {}  # further addresses that members have answered from
        self._reachable: tuple[Recipient, ...] | None = None
        self.heartbeats_received = 0
        self.goodbyes_received = 0
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

    def is_named(self, address: Address) -> bool:
        """Whether somebody who is trusted has named it: the configuration, or a living member as a sibling's."""
        return address in self._peers or address in self._siblings()

    def is_host_of_peer(self, host: str) -> bool:
        return any(peer[0] == host for peer in self._peers)

    def is_known_at(self, address: Address, life: bytes, now: float) -> bool:
        """Whether a member sends in that life and has answered from that address."""
        return any(
            member.life == life and not self._is_silent(member, now)
            for member in self._members.values()
            if member.address == address or (member.confirmed and self._aliases.get(address) == member.id)
        )

    def met(self, meeting: Meeting, stamp: Stamp, heartbeat: Heartbeat, now: float) -> Change | None:
        """A server has met a challenge. None if nothing is new but the time.

        Change.REFUSED means that there is no room for it.
        """
        server, address, life, confirmed = meeting
        member = self._members.get(server)
        if member is None:
            if not self._make_room():
                return Change.REFUSED
            self._members[server] = Member(
                id=server,
                address=address,
                life=life,
                stamp=stamp,
                received_at=now,
                heartbeat=heartbeat,
                heartbeat_at=now,
                confirmed=confirmed,
            )
            self._reachable = None
            return Change.JOINED
        change = Change.RETURNED if not member.alive else None
        if member.stamp[0] != stamp[0] or member.life != life:
            change = Change.RESTARTED
            self.restarts_detected += 1
        if change is not None or self._is_silent(member, now) or self._is_better(member, address, confirmed):
            member.address, member.life, member.confirmed = address, life, confirmed
        if change is Change.RESTARTED or stamp > member.stamp:
            member.stamp = stamp
            member.heartbeat, member.heartbeat_at = heartbeat, now
        member.alive = True
        member.received_at, member.has_left = now, False
        self._aliases[address] = server
        if len(self._aliases) > self._bounds.max_greeted:
            del self._aliases[next(iter(self._aliases))]
        self._reachable = None
        return change

    def _is_better(self, member: Member, address: Address, confirmed: bool) -> bool:
        """One that sends stays where it is, but for an address that it names itself, or that was configured."""
        if confirmed != member.confirmed:
            return confirmed
        return address in self._peers and member.address not in self._peers

    def receive(self, server: str, stamp: Stamp, now: float) -> Change | None:
        """A genuine packet of a member came in, to this life of this server, from a life that is known."""
        member = self._members[server]
        change = Change.RETURNED if not member.alive else None
        if stamp > member.stamp:
            member.stamp = stamp
        if change is not None:
            member.alive = True
            self._reachable = None
        member.received_at, member.has_left = now, False
        return change

    def heartbeat(self, server: str, stamp: Stamp, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat of a server; call `receive` for it first."""
        self.heartbeats_received += 1
        member = self._members[server]
        if stamp >= member.stamp:
            if heartbeat.sibling_ports != member.heartbeat.sibling_ports:
                self._reachable = None
            member.heartbeat, member.heartbeat_at = heartbeat, now

    def left(self, server: str, now: float) -> None:
        """It has said that it stops: the next check finds it dead."""
        member = self._members[server]
        member.has_left = True
        member.received_at = min(member.received_at, now - self._bounds.dead_after_s)
        self.goodbyes_received += 1

    def _is_silent(self, member: Member, now: float) -> bool:
        return now - member.received_at >= _SILENT_HEARTBEATS * self._bounds.heartbeat_s

    def check(self, now: float) -> list[Member]:
        """Who has died since the last time. The long dead are forgotten."""
        died = []
        for member in self.members():
            silent_s = now - member.received_at
            if member.alive and silent_s >= self._bounds.dead_after_s:
                member.alive = False
                died.append(member)
            elif not member.alive and silent_s >= self._bounds.forget_after_s:
                del self._members[member.id]
                self._reachable = None
        if died:
            self._reachable = None
        return died

    def recipients(self, servers: Iterable[str]) -> tuple[Recipient, ...]:
        """Those of them that live."""
        members = self._members
        return tuple(
            Recipient(m.address, m.life) for server in servers if (m := members.get(server)) is not None and m.alive
        )

    def reachable(self) -> tuple[Recipient, ...]:
        """Every living member."""
        if self._reachable is None:
            self._reachable = self.recipients(tuple(self._members))
        return self._reachable

    def everyone(self) -> tuple[Recipient, ...]:
        """Also the dead: a heartbeat there is how both learn that a broken network has healed."""
        return tuple(Recipient(member.address, member.life) for member in self._members.values())

    def to_greet(self, now: float) -> tuple[Address, ...]:
        """Addresses at which there may be a server that is unknown or has been silent for a while: it may have
        restarted, or moved to an address that it has to announce."""
        sending = {m.id for m in self._members.values() if not self._is_silent(m, now)}
        taken = {m.address for m in self._members.values() if m.id in sending}
        taken |= {address for address, server in self._aliases.items() if server in sending}
        silent = [m.address for m in self._members.values() if m.id not in sending]
        addresses = dict.fromkeys((*self._peers, *self._siblings(), *silent))
        return tuple(address for address in addresses if address not in taken)

    def _make_room(self) -> bool:
        if len(self._members) < self._bounds.max_members:
            return True
        dead = [member for member in self._members.values() if not member.alive]
        if not dead:
            return False
        del self._members[min(dead, key=lambda member: member.received_at).id]
        return True

    def _siblings(self) -> Iterable[Address]:
        """The addresses that living members name as those of their siblings."""
        named = (
            (member.address[0], port)
            for member in self._members.values()
            if member.alive
            for port in member.heartbeat.sibling_ports
        )
        return islice(named, self._bounds.max_greeted)
