"""What the shared state tells its owner to act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from queenmq.cluster.maintenance import Switch
from queenmq.cluster.membership import Address
from queenmq.cluster.messages import Options


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may have become readable in these partitions of the queue; None: in whichever."""

    queue: str
    partitions: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The queue has these options now; None: it was deleted."""

    queue: str
    options: Options | None


@dataclass(frozen=True, slots=True)
class MaintenanceChanged:
    switch: Switch
    on: bool


@dataclass(frozen=True, slots=True)
class MemberJoined:
    server: str


@dataclass(frozen=True, slots=True)
class MemberRestarted:
    server: str


@dataclass(frozen=True, slots=True)
class MemberReturned:
    """A server that was thought dead is heard again, in the same life."""

    server: str


@dataclass(frozen=True, slots=True)
class MemberDied:
    server: str


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """A server that started later calls itself like this one; reported once for each of its lives."""

    server: str
    address: Address


Event: TypeAlias = (
    Wake
    | ConfigChanged
    | MaintenanceChanged
    | MemberJoined
    | MemberRestarted
    | MemberReturned
    | MemberDied
    | IdentityConflict
)
