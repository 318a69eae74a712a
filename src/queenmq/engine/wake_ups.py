"""How operations tell that something became readable."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class Wake(Protocol):
    """Told after the commit. `partitions` are names; None if it is not known which."""

    def __call__(self, queue: str, partitions: Collection[str] | None = None) -> None: ...


class Freed(Protocol):
    """Told after the commit that leases have ended: (queue, partition, group)."""

    def __call__(self, leases: Collection[tuple[str, str, str]]) -> None: ...


def by_queue(places: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The partitions of each queue, from pairs of both."""
    found: dict[str, set[str]] = {}
    for queue, partition in places:
        found.setdefault(queue, set()).add(partition)
    return found
