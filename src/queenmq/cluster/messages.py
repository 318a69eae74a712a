"""The messages between servers: the types with their numbers, and their payloads in MessagePack.

A payload that decodes is well formed: names have a length, counts are not negative. It may still be untrue, and
its users must tolerate that. Most payloads carry lists, so that one packet carries many changes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from queenmq.core.maintenance import Switch
from queenmq.core.names import MAX_NAME


class MessageType(IntEnum):
    MESSAGE_AVAILABLE = 1
    HEARTBEAT = 3
    GREETING = 4
    GOODBYE = 5
    QUEUE_CONFIG_SET = 10
    QUEUE_CONFIG_DELETE = 11
    CONSUMER_REGISTERED = 20
    CONSUMER_DEREGISTERED = 21
    PRESENCE_SNAPSHOT = 22
    PARTITION_DELETED = 25
    LEASE_HINT_ACQUIRED = 30
    LEASE_HINT_RELEASED = 31
    MAINTENANCE_SET = 40


MAX_HASH = 2**32
EVERY_QUEUE = "\0"  # no queue's name: consumers that wait for several queues

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
TOKEN_BYTES = 16
Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
MaybeToken = Annotated[bytes, Meta(max_length=TOKEN_BYTES)]
Hash = Annotated[int, Meta(ge=0, le=MAX_HASH)]

_OptionName = Annotated[str, Meta(min_length=1, max_length=64)]
_OptionValue = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | bool | Annotated[str, Meta(max_length=MAX_NAME)] | None


class _Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class MessageAvailable(_Payload, frozen=True):
    """Something became readable in these partitions of these queues; an empty list: in any of them."""

    queues: list[tuple[Name, list[Name]]]


class Heartbeat(_Payload, frozen=True):
    """The sender lives; where its HTTP interface is (an empty host: where its packets go to), and its load.

    `coordinates` says that it serves requests that others forward.
    """

    http_host: Annotated[str, Meta(max_length=MAX_NAME)]
    http_port: Annotated[int, Meta(ge=0, le=65535)]
    sibling_ports: Annotated[list[Port], Meta(max_length=128)]
    parked_polls: Count = 0
    outstanding_requests: Count = 0
    cpu_per_mille: Count = 0
    started_at_ms: Version = 0
    coordinates: bool = False


class Greeting(_Payload, frozen=True):
    """The sender wants to be known, and to know: where it is reached (an empty host: where it is written to), the
    number that packets to this life of it must carry, a challenge to be met, and the challenge that it meets."""

    host: Annotated[str, Meta(max_length=64, pattern="^[0-9A-Fa-f.:]*$")]
    port: Annotated[int, Meta(ge=0, le=65535)]
    life: Token
    challenge: MaybeToken
    met: MaybeToken
    heartbeat: Heartbeat


class Goodbye(_Payload, frozen=True):
    """The sender stops in good order. Servers that do not know this notice it by its silence."""


class QueueConfigSet(_Payload, frozen=True):
    queue: Name
    options: Annotated[dict[_OptionName, _OptionValue], Meta(max_length=64)]
    version: Version


class QueueConfigDelete(_Payload, frozen=True):
    queues: list[tuple[Name, Version]]


class ConsumerRegistered(_Payload, frozen=True):
    queues: list[Name]


class ConsumerDeregistered(_Payload, frozen=True):
    queues: list[Name]


class PresenceSnapshot(_Payload, frozen=True):
    """Every queue of which the sender has consumers and whose name hashes into `low` to below `high`.

    So each part stands for itself: a lost one harms no other, and nothing is put together from several.
    """

    low: Hash
    high: Hash
    queues: list[Name]


class PartitionDeleted(_Payload, frozen=True):
    partitions: list[tuple[Name, Name]]


class LeaseHintAcquired(_Payload, frozen=True):
    """(queue, partition, group, milliseconds for which the hint may be believed)"""

    leases: list[tuple[Name, Name, Name, Count]]


class LeaseHintReleased(_Payload, frozen=True):
    """(queue, partition, group)"""

    leases: list[tuple[Name, Name, Name]]


class MaintenanceSet(_Payload, frozen=True):
    switch: Switch
    on: bool
    version: Version


Payload: TypeAlias = (
    MessageAvailable
    | Heartbeat
    | Greeting
    | Goodbye
    | QueueConfigSet
    | QueueConfigDelete
    | ConsumerRegistered
    | ConsumerDeregistered
    | PresenceSnapshot
    | PartitionDeleted
    | LeaseHintAcquired
    | LeaseHintReleased
    | MaintenanceSet
)

PAYLOADS: dict[MessageType, type[Payload]] = {
    MessageType.MESSAGE_AVAILABLE: MessageAvailable,
    MessageType.HEARTBEAT: Heartbeat,
    MessageType.GREETING: Greeting,
    MessageType.GOODBYE: Goodbye,
    MessageType.QUEUE_CONFIG_SET: QueueConfigSet,
    MessageType.QUEUE_CONFIG_DELETE: QueueConfigDelete,
    MessageType.CONSUMER_REGISTERED: ConsumerRegistered,
    MessageType.CONSUMER_DEREGISTERED: ConsumerDeregistered,
    MessageType.PRESENCE_SNAPSHOT: PresenceSnapshot,
    MessageType.PARTITION_DELETED: PartitionDeleted,
    MessageType.LEASE_HINT_ACQUIRED: LeaseHintAcquired,
    MessageType.LEASE_HINT_RELEASED: LeaseHintReleased,
    MessageType.MAINTENANCE_SET: MaintenanceSet,
}
TYPE_OF: dict[type[Payload], MessageType] = {payload: number for number, payload in PAYLOADS.items()}

_decoders = {int(number): msgspec.msgpack.Decoder(payload) for number, payload in PAYLOADS.items()}
_encoder = msgspec.msgpack.Encoder()


def encode(payload: object) -> bytes:
    return _encoder.encode(payload)


def decode(type: int, payload: bytes) -> Payload | None:
    """The payload of a known type; None if it is not one."""
    try:
        return _decoders[type].decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
