"""What the shared state reports to its owner, who acts on it: wake-ups, changes of members, and what other servers
report about the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from queenmq.cluster.membership import Address
from queenmq.cluster.messages import MaintenanceSet, PartitionDeleted, QueueConfigDelete, QueueConfigSet
from queenmq.cluster.port import Receiver


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may have become readable in these partitions of the queue; None: in any of them."""

    queue: str
    partitions: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class MemberJoined:
    server: str


@dataclass(frozen=True, slots=True)
class MemberRestarted:
    server: str


@dataclass(frozen=True, slots=True)
class MemberReturned:
    """A server that counted as dead sends packets again, in the same life."""

    server: str


@dataclass(frozen=True, slots=True)
class MemberDied:
    server: str
    has_left: bool = False  # it has said so


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """A server that started later calls itself like this one; reported once for each of its lives."""

    server: str
    address: Address


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """At the host of a peer a server sends packets of another version; not proven, and seldom reported."""

    address: Address
    version: int


MEMBERS: Final = (MemberJoined, MemberRestarted, MemberReturned, MemberDied)

Event: TypeAlias = (
    Wake
    | QueueConfigSet
    | QueueConfigDelete
    | PartitionDeleted
    | MaintenanceSet
    | MemberJoined
    | MemberRestarted
    | MemberReturned
    | MemberDied
    | IdentityConflict
    | OtherVersion
)


def deliver(receiver: Receiver, event: Event) -> None:
    """Hand over what another server said; changes of members are not for the receiver."""
    match event:
        case Wake(queue, partitions):
            receiver.receive_readable(queue, partitions)
        case QueueConfigSet(queue, options, version):
            receiver.receive_config(queue, options, version)
        case QueueConfigDelete(queues):
            for queue, version in queues:
                receiver.receive_deletion(queue, version)
        case PartitionDeleted(deleted):
            for queue, partition in deleted:
                receiver.receive_partition_deletion(queue, partition)
        case MaintenanceSet(switch, on, version):
            receiver.receive_maintenance(switch, on, version)
