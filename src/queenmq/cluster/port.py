"""What a broker and its cluster know of each other.

`Cluster` is what the broker sends to the other servers, `Receiver` what it gets from them, and `Alone` the cluster of
a server that has no others.

Everything sent is a hint: a message that is lost or wrong costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Protocol

from queenmq.core.maintenance import Switch
from queenmq.core.options import OptionValues

Lease = tuple[str, str, str]  # queue, partition, group


class Advice(Enum):
    """Whether to ask the database for a lease that another server may hold."""

    TRY = auto()
    SKIP = auto()
    VERIFY = auto()  # try although there is a hint, and report with `lease_verified` what the database said


class Cluster(Protocol):
    """The other servers, for the broker."""

    @property
    def linked(self) -> bool:
        """False: there are no others, and nothing here does anything."""
        ...

    def readable(self, queue: str, partitions: Collection[str] | None) -> None:
        """Something became readable in these partitions; None if it is not known in which."""
        ...

    def acquired(self, queue: str, partition: str, group: str, lease_s: float) -> None:
        """This server got a lease."""
        ...

    def released(self, leases: Collection[Lease]) -> None:
        """Leases ended. Elsewhere that ends their hints and wakes the long polls that wait for them."""
        ...

    def lease_advice(self, queue: str, partition: str, group: str) -> Advice: ...

    def lease_verified(self, queue: str, partition: str, group: str, *, was_wrong: bool) -> None: ...

    def found_free(self, queue: str, partition: str, group: str) -> None:
        """The database says that nobody holds this lease: a hint that says otherwise is wrong."""
        ...

    def consumer_came(self, queue: str) -> None:
        """The first long poll of a queue is parked here; an empty name stands for those over several queues."""
        ...

    def consumer_went(self, queue: str) -> None: ...

    def config_set(self, queue: str, options: OptionValues, version: int) -> None:
        """A queue was made or changed here, with that database version."""
        ...

    def config_deleted(self, queue: str, version: int) -> None: ...

    def partitions_deleted(self, partitions: Sequence[tuple[str, str]]) -> None:
        """(queue, partition) were deleted here."""
        ...

    def maintenance_set(self, switch: Switch, on: bool, version: int) -> None: ...


class Receiver(Protocol):
    """The broker, for the cluster: what other servers say, and what they want to know."""

    def receive_readable(self, queue: str, partitions: Collection[str] | None) -> None: ...

    def receive_config(self, queue: str, options: OptionValues, version: int) -> None: ...

    def receive_deletion(self, queue: str, version: int) -> None: ...

    def receive_partition_deletion(self, queue: str, partition: str) -> None: ...

    def receive_maintenance(self, switch: Switch, on: bool, version: int) -> None: ...

    def requests(self) -> tuple[int, int]:
        """How many long polls are parked, and how many requests wait for the database."""
        ...


class Alone:
    """No other servers."""

    linked = False

    def readable(self, queue: str, partitions: Collection[str] | None) -> None: ...

    def acquired(self, queue: str, partition: str, group: str, lease_s: float) -> None: ...

    def released(self, leases: Collection[Lease]) -> None: ...

    def lease_advice(self, queue: str, partition: str, group: str) -> Advice:
        return Advice.TRY

    def lease_verified(self, queue: str, partition: str, group: str, *, was_wrong: bool) -> None: ...

    def found_free(self, queue: str, partition: str, group: str) -> None: ...

    def consumer_came(self, queue: str) -> None: ...

    def consumer_went(self, queue: str) -> None: ...

    def config_set(self, queue: str, options: OptionValues, version: int) -> None: ...

    def config_deleted(self, queue: str, version: int) -> None: ...

    def partitions_deleted(self, partitions: Sequence[tuple[str, str]]) -> None: ...

    def maintenance_set(self, switch: Switch, on: bool, version: int) -> None: ...
