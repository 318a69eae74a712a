"""The words of acknowledgement, and which requests may share one call. No I/O.

What an acknowledgement does to a position is decided in one place, the SQL function `queen.ack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COMPLETED = frozenset({"completed", "success"})
STATUSES = COMPLETED | {"failed", "dlq", "retry"}
TRANSACTION_STATUSES = COMPLETED | {"failed", "dlq"}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    partition_id: str
    transaction_id: str
    group: str | None  # None only in a transaction: the group that holds one of the required leases
    lease_id: str | None
    status: str
    error: str | None

    @property
    def position(self) -> tuple[str, str | None]:
        """What is locked and decided as one: a group in a partition."""
        return (self.partition_id, self.group)


class AckAdmission:
    """Which requests may share one call, so that retry or dead letter is decided once per position and request.

    Two requests about one position share a call only if both do nothing but complete messages. A request that has to
    wait keeps later ones of its positions waiting too, so order within a position is kept.
    """

    def __init__(self) -> None:
        self._completing_only: set[tuple[str, str | None]] = set()
        self._exclusive: set[tuple[str, str | None]] = set()  # anything else happens, or something waits

    def admit(self, request: Sequence[Acknowledgement]) -> bool:
        positions = {item.position for item in request}
        completes = all(item.status in COMPLETED for item in request)
        admitted = positions.isdisjoint(self._exclusive) and (completes or positions.isdisjoint(self._completing_only))
        (self._completing_only if admitted and completes else self._exclusive).update(positions)
        return admitted
