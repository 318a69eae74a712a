"""What a received packet does. Nothing that comes in, signed or not, true or not, makes it raise."""

from __future__ import annotations

from queenmq.cluster import frame as wire
from queenmq.cluster.events import (
    ConfigChanged,
    Event,
    IdentityConflict,
    MaintenanceChanged,
    MemberJoined,
    MemberRestarted,
    MemberReturned,
    Wake,
)
from queenmq.cluster.frame import Frame
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.membership import Address, Change, Membership, Stamp
from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    MaintenanceSet,
    MessageAvailable,
    PartitionDeleted,
    PartitionFree,
    Payload,
    PresenceSnapshot,
    QueueConfigDelete,
    QueueConfigSet,
    decode,
)
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.replay import ReplayGuard
from queenmq.cluster.tiers import Tiers
from queenmq.cluster.traffic import Traffic

_OfTheSender = (ConsumerRegistered, ConsumerDeregistered, PresenceSnapshot, LeaseHintAcquired, LeaseHintReleased)


class Inbox:
    def __init__(
        self,
        ring: KeyRing,
        server_id: str,
        epoch: int,
        *,
        replay: ReplayGuard,
        members: Membership,
        tiers: Tiers,
        traffic: Traffic,
    ) -> None:
        self._ring = ring
        self._server_id = server_id
        self._epoch = epoch
        self._rival_epoch = epoch
        self._replay = replay
        self._members = members
        self._tiers = tiers
        self._traffic = traffic
        self.newcomers: dict[str, None] = {}  # who has to be told what this server is

    def receive(self, datagram: bytes, source: Address, now: float) -> list[Event]:
        self._traffic.packets_received += 1
        self._traffic.bytes_received += len(datagram)
        frame = wire.open(self._ring, datagram)
        if isinstance(frame, Refusal):
            return self._drop(frame)
        if frame.sender == self._server_id:
            return self._own(frame, source)
        refusal = self._replay.admit(frame.sender, frame.epoch, frame.sequence, now)
        if refusal is not None:
            return self._drop(refusal)
        payload = decode(frame.type, frame.payload)
        if payload is None:
            return self._drop(Refusal.UNDECODABLE)
        events = self._hear(frame, source, now)
        if isinstance(payload, _OfTheSender):
            if not self._members.is_alive(frame.sender):
                return self._drop(Refusal.UNKNOWN_SENDER)
            events += self._believe(frame.sender, (frame.epoch, frame.sequence), payload, now)
        elif isinstance(payload, Heartbeat):
            events += self._heartbeat(frame, source, payload, now)
        else:
            events += self._act(payload, now)
        return events

    def _drop(self, refusal: Refusal) -> list[Event]:
        self._traffic.dropped[refusal] += 1
        return []

    def _own(self, frame: Frame, source: Address) -> list[Event]:
        """Our own packet come back, one of a former life, or one of somebody with our name."""
        self._traffic.dropped[Refusal.OWN_PACKET] += 1
        if frame.epoch == self._epoch:
            self._members.own_packet_from(source)
        if frame.epoch <= self._rival_epoch:
            return []
        self._rival_epoch = frame.epoch
        self._traffic.conflicts += 1
        return [IdentityConflict(frame.sender, source)]

    def _hear(self, frame: Frame, source: Address, now: float) -> list[Event]:
        change = self._members.heard(frame.sender, (frame.epoch, frame.sequence), source, now)
        if change is None:
            return []
        self.newcomers[frame.sender] = None
        if change is Change.RESTARTED:
            self._tiers.forget_server(frame.sender)
            return [MemberRestarted(frame.sender)]
        return [MemberReturned(frame.sender)]

    def _heartbeat(self, frame: Frame, source: Address, heartbeat: Heartbeat, now: float) -> list[Event]:
        if self._members.heartbeat(frame.sender, (frame.epoch, frame.sequence), source, heartbeat, now):
            self.newcomers[frame.sender] = None
            return [MemberJoined(frame.sender)]
        if self._members.get(frame.sender) is None:
            return self._drop(Refusal.TOO_MANY_MEMBERS)
        return []

    def _believe(self, sender: str, stamp: Stamp, payload: Payload, now: float) -> list[Event]:
        """What a server says of itself."""
        tiers = self._tiers
        match payload:
            case ConsumerRegistered(queues):
                tiers.presence.registered(sender, stamp, queues, now)
            case ConsumerDeregistered(queues):
                tiers.presence.deregistered(sender, stamp, queues, now)
            case PresenceSnapshot(low, high, queues):
                tiers.presence.snapshot(sender, stamp, low, high, queues, now)
            case LeaseHintAcquired(leases):
                for queue, partition, group, ttl_ms in leases:
                    tiers.lease_hints.acquired(sender, stamp, (queue, partition, group), ttl_ms / 1000, now)
            case LeaseHintReleased(leases):
                for lease in leases:
                    tiers.lease_hints.released(sender, stamp, lease, now)
                return [Wake(queue, (partition,)) for queue, partition, _ in leases]
        return []

    def _act(self, payload: Payload, now: float) -> list[Event]:
        """What anybody may say: it wakes somebody for nothing at worst, or has a database version."""
        tiers = self._tiers
        match payload:
            case MessageAvailable(queues) | PartitionFree(queues):
                return [Wake(queue, tuple(partitions) or None) for queue, partitions in queues]
            case QueueConfigSet(queue, options, version):
                if tiers.configs.heard(queue, options, version, now):
                    return [ConfigChanged(queue, options)]
            case QueueConfigDelete(queues):
                return [ConfigChanged(q, None) for q, version in queues if tiers.delete_queue(q, version, now)]
            case PartitionDeleted(partitions):
                for queue, partition in partitions:
                    tiers.delete_partition(queue, partition)
            case MaintenanceSet(switch, on, version):
                if tiers.maintenance.heard(switch, on, version, now):
                    return [MaintenanceChanged(switch, on)]
        return []
