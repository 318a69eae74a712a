"""What this server sends, and to which servers: each frame is signed for its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queenmq.cluster.frame import ANYBODY, MAX_PAYLOAD, encode_sender, seal
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.membership import Address, Membership, Recipient
from queenmq.cluster.messages import EVERY_QUEUE, TYPE_OF, Greeting, MessageType, Payload, encode
from queenmq.cluster.packing import Packed, pack, pack_snapshot
from queenmq.cluster.presence import Presence
from queenmq.cluster.traffic import Traffic


class Outgoing(NamedTuple):
    address: Address
    datagram: bytes


class Outbox:
    def __init__(
        self,
        ring: KeyRing,
        server_id: str,
        epoch: int,
        *,
        members: Membership,
        presence: Presence,
        traffic: Traffic,
    ) -> None:
        self._ring = ring
        self._sender = encode_sender(server_id)
        self._epoch = epoch
        self._sequence = 0
        self._members = members
        self._presence = presence
        self._traffic = traffic
        self.targeted = 0  # notifications, counted by queue and server
        self.broadcast = 0
        self.saved = 0

    def send(self, payload: Payload, recipients: Sequence[Recipient]) -> list[Outgoing]:
        """One payload, if it fits a frame."""
        if not recipients:
            return []
        encoded = encode(payload)
        fits = len(encoded) <= MAX_PAYLOAD
        return self._send(TYPE_OF[type(payload)], Packed([encoded] if fits else [], int(not fits)), recipients)

    def send_list(
        self, message: MessageType, entries: Sequence[object], recipients: Sequence[Recipient]
    ) -> list[Outgoing]:
        return self._send(message, pack(entries), recipients) if recipients else []

    def send_presence(self, queues: Sequence[str], recipients: Sequence[Recipient]) -> list[Outgoing]:
        return self._send(MessageType.PRESENCE_SNAPSHOT, pack_snapshot(queues), recipients) if recipients else []

    def notify(self, message: MessageType, entries: Sequence[tuple[str, list[str]]]) -> list[Outgoing]:
        """Send (queue, partitions) to the servers with consumers of the queue, or to all if none is known."""
        everybody = len(self._members.reachable())
        for queue, _ in entries:
            servers = self._interested(queue)
            if servers is None:
                self.broadcast += everybody
            else:
                reached = len(self._members.recipients(servers))
                self.targeted += reached
                self.saved += max(everybody - reached, 0)
        return self.hint(message, entries)

    def hint(self, message: MessageType, entries: Sequence[tuple[str, *tuple[object, ...]]]) -> list[Outgoing]:
        """The same for any entries that begin with a queue, without counting them as notifications."""
        groups: dict[tuple[Recipient, ...], list[object]] = {}
        for entry in entries:
            servers = self._interested(entry[0])
            recipients = self._members.reachable() if servers is None else self._members.recipients(servers)
            groups.setdefault(recipients, []).append(entry)
        outgoing: list[Outgoing] = []
        for recipients, names in groups.items():
            outgoing += self.send_list(message, names, recipients)
        return outgoing

    def _interested(self, queue: str) -> list[str] | None:
        servers = self._presence.servers_for(queue)
        roaming = self._presence.servers_for(EVERY_QUEUE)
        if servers is None or not roaming:
            return servers
        return servers + [server for server in roaming if server not in servers]

    def _send(self, message: MessageType, packed: Packed, recipients: Sequence[Recipient]) -> list[Outgoing]:
        traffic = self._traffic
        traffic.entries_too_large += packed.dropped
        outgoing: list[Outgoing] = []
        for payload in packed.payloads:
            self._sequence += 1
            for address, life in recipients:
                outgoing.append(self._sealed(message, life, payload, address))
        return outgoing

    def _sealed(self, message: MessageType, life: bytes, payload: bytes, address: Address) -> Outgoing:
        datagram = seal(self._ring, message, self._sender, life, self._epoch, self._sequence, payload)
        self._traffic.signed += 1
        self._traffic.packets_sent += 1
        self._traffic.bytes_sent += len(datagram)
        return Outgoing(address, datagram)

    def greet(self, greeting: Greeting, address: Address) -> Outgoing:
        """A greeting to the server at that address, whichever it is."""
        self._sequence += 1
        return self._sealed(MessageType.GREETING, ANYBODY, encode(greeting), address)
