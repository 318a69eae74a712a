"""What a received packet does. Nothing that comes in, signed or not, true or not, makes it raise."""

from __future__ import annotations

from typing import NamedTuple

from queenmq.cluster import frame as wire
from queenmq.cluster.events import (
    Event,
    IdentityConflict,
    MemberJoined,
    MemberRestarted,
    MemberReturned,
    OtherVersion,
    Wake,
)
from queenmq.cluster.frame import Frame
from queenmq.cluster.greetings import Greetings
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.membership import Address, Change, Meeting, Membership, Stamp
from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Goodbye,
    Greeting,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    MaintenanceSet,
    MessageAvailable,
    MessageType,
    PartitionDeleted,
    Payload,
    PresenceSnapshot,
    QueueConfigDelete,
    QueueConfigSet,
    decode,
)
from queenmq.cluster.presence import Presence
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.replay import ReplayGuard
from queenmq.cluster.traffic import Traffic

REPORT_VERSION_S = 600.0  # so often a host with packets of another version is reported

_MAX_REPORTED = 1024
_VERSIONS = range(1, 32)  # what a release may have; anything else is no packet of ours
_OfTheSender = (ConsumerRegistered, ConsumerDeregistered, PresenceSnapshot, LeaseHintAcquired, LeaseHintReleased)


class Reply(NamedTuple):
    """The challenge to be met, the life of the server that has sent it, and whether it may be challenged in turn: a
    greeting that meets a challenge ends the exchange, else two that do not take each other would never stop."""

    challenge: bytes = b""
    life: bytes = b""
    is_last: bool = False


class Inbox:
    def __init__(
        self,
        ring: KeyRing,
        server_id: str,
        epoch: int,
        *,
        life: bytes,
        greetings: Greetings,
        replay: ReplayGuard,
        members: Membership,
        presence: Presence,
        lease_hints: LeaseHints,
        traffic: Traffic,
    ) -> None:
        self._ring = ring
        self._server_id = server_id
        self._rival_epoch = epoch
        self._life = life
        self._greetings = greetings
        self._replay = replay
        self._members = members
        self._presence = presence
        self._lease_hints = lease_hints
        self._traffic = traffic
        self._reported: dict[str, float] = {}  # hosts with packets of another version
        self.newcomers: dict[str, None] = {}  # members that need to learn the state of this server
        self.replies: dict[Address, Reply] = {}  # who has to be greeted

    def receive(self, datagram: bytes, source: Address, now: float) -> list[Event]:
        self._traffic.packets_received += 1
        self._traffic.bytes_received += len(datagram)
        frame = wire.open(self._ring, datagram)
        if frame is Refusal.WRONG_VERSION:
            return self._other_version(datagram[0], source, now)
        if isinstance(frame, Refusal):
            return self._drop(frame)
        if frame.sender == self._server_id:
            return self._own(frame, source)
        if frame.type == MessageType.GREETING:
            return self._greeted(frame, source, now)
        if frame.receiver != self._life:
            return self._drop(Refusal.WRONG_RECEIVER)
        member = self._members.get(frame.sender)
        if member is None or member.stamp[0] != frame.epoch:
            return self._drop(Refusal.OLD_EPOCH if member and frame.epoch < member.stamp[0] else Refusal.UNKNOWN_SENDER)
        refusal = self._replay.admit(frame.sender, frame.epoch, frame.sequence, now)
        if refusal is not None:
            return self._drop(refusal)
        payload = decode(frame.type, frame.payload)
        if payload is None:
            return self._drop(Refusal.UNDECODABLE)
        if isinstance(payload, Goodbye):
            self._members.left(frame.sender, now)
            return []
        events = self._hear(frame, now)
        if isinstance(payload, _OfTheSender):
            events += self._believe(frame.sender, (frame.epoch, frame.sequence), payload, now)
        elif isinstance(payload, Heartbeat):
            self._members.heartbeat(frame.sender, (frame.epoch, frame.sequence), payload, now)
        else:
            events += self._act(payload)
        return events

    def _drop(self, refusal: Refusal) -> list[Event]:
        self._traffic.dropped[refusal] += 1
        return []

    def _other_version(self, version: int, source: Address, now: float) -> list[Event]:
        """Most likely a server that was not upgraded yet, or already; nobody can tell, because versions differ in how
        they sign. So nothing comes of it but a report."""
        self._drop(Refusal.WRONG_VERSION)
        host = source[0]
        if version not in _VERSIONS or now < self._reported.get(host, now) or not self._members.is_host_of_peer(host):
            return []
        if len(self._reported) >= _MAX_REPORTED:
            self._reported.clear()
        self._reported[host] = now + REPORT_VERSION_S
        return [OtherVersion(source, version)]

    def _own(self, frame: Frame, source: Address) -> list[Event]:
        """Our own packet come back, one of a former life, or one of somebody with our name."""
        self._traffic.dropped[Refusal.OWN_PACKET] += 1
        if frame.epoch <= self._rival_epoch:
            return []
        self._rival_epoch = frame.epoch
        self._traffic.conflicts += 1
        return [IdentityConflict(frame.sender, source)]

    def _greeted(self, frame: Frame, source: Address, now: float) -> list[Event]:
        """Somebody with the secret wants to be known. What it says is believed if it meets a challenge of ours."""
        greeting = decode(frame.type, frame.payload)
        if not isinstance(greeting, Greeting):
            return self._drop(Refusal.UNDECODABLE)
        if not greeting.met:
            return [] if self._reply(frame, greeting, source) else self._drop(Refusal.REPLAYED)
        address = self._greetings.met(greeting.met, now)
        if address is None:
            return self._drop(Refusal.NOT_ASKED)
        own = (greeting.host, greeting.port) if greeting.host else None
        if address != own and (not self._members.is_named(address) or (own and self._members.is_named(own))):
            # It lives, but it says that it is elsewhere: somebody at that address has passed our challenge on. Only of
            # a configured address it need not know that it is its own, and then it does not name another of them.
            if own is not None:
                self.replies[own] = Reply()
            return self._drop(Refusal.NOT_ASKED)
        refusal = self._replay.admit(frame.sender, frame.epoch, frame.sequence, now)
        if refusal is not None:
            return self._drop(refusal)
        events = self._meet(frame, greeting, Meeting(frame.sender, address, greeting.life, address == own), now)
        if greeting.challenge:
            self._reply(frame, greeting, source)
        return events

    def _reply(self, frame: Frame, greeting: Greeting, source: Address) -> bool:
        """Meet its challenge: where it came from if that is a peer's address, else where it says that it is, and also
        where it came from if that is at least a peer's host, because it may not know its own address. False if it is
        an old greeting, which gets no answer."""
        if not self._greetings.is_newest(frame.sender, (frame.epoch, frame.sequence)):
            return False
        reply = Reply(greeting.challenge, greeting.life, bool(greeting.met))
        if self._members.is_named(source):
            self.replies[source] = reply
            return True
        if greeting.host and greeting.port:
            self.replies[greeting.host, greeting.port] = reply
        if self._members.is_host_of_peer(source[0]):
            self.replies[source] = reply
        return True

    def _meet(self, frame: Frame, greeting: Greeting, meeting: Meeting, now: float) -> list[Event]:
        match self._members.met(meeting, (frame.epoch, frame.sequence), greeting.heartbeat, now):
            case Change.REFUSED:
                return self._drop(Refusal.TOO_MANY_MEMBERS)
            case None:
                return []
            case change:
                return self._changed(frame.sender, change)

    def _hear(self, frame: Frame, now: float) -> list[Event]:
        change = self._members.receive(frame.sender, (frame.epoch, frame.sequence), now)
        return [] if change is None else self._changed(frame.sender, change)

    def _changed(self, server: str, change: Change) -> list[Event]:
        self.newcomers[server] = None
        if change is Change.JOINED:
            return [MemberJoined(server)]
        if change is Change.RESTARTED:
            self._presence.forget_server(server)
            self._lease_hints.forget_server(server)
            return [MemberRestarted(server)]
        return [MemberReturned(server)]

    def _believe(self, sender: str, stamp: Stamp, payload: Payload, now: float) -> list[Event]:
        """What a server says of itself."""
        match payload:
            case ConsumerRegistered(queues):
                self._presence.registrations += len(queues)
                self._presence.registered(sender, stamp, queues, now)
            case ConsumerDeregistered(queues):
                self._presence.deregistered(sender, stamp, queues, now)
            case PresenceSnapshot(low, high, queues):
                self._presence.snapshot(sender, stamp, low, high, queues, now)
            case LeaseHintAcquired(leases):
                for queue, partition, group, ttl_ms in leases:
                    self._lease_hints.acquired(sender, stamp, (queue, partition, group), ttl_ms / 1000, now)
            case LeaseHintReleased(leases):
                for lease in leases:
                    self._lease_hints.released(sender, stamp, lease, now)
                return [Wake(queue, (partition,)) for queue, partition, _ in leases]
        return []

    def _act(self, payload: Payload) -> list[Event]:
        """What anybody may say: it wakes somebody for nothing at worst, or has a database version."""
        match payload:
            case MessageAvailable(queues):
                return [Wake(queue, tuple(partitions) or None) for queue, partitions in queues]
            case QueueConfigDelete(queues):
                # What hangs on the queue goes even if it has been made anew since: it may be of the former one.
                for queue, _ in queues:
                    self._presence.forget_queue(queue)
                    self._lease_hints.forget_queue(queue)
                return [payload]
            case PartitionDeleted(partitions):
                for queue, partition in partitions:
                    self._lease_hints.forget_partition(queue, partition)
                return [payload]
            case QueueConfigSet() | MaintenanceSet():
                return [payload]
        return []
