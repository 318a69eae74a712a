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
    def lane(self) -> tuple[str, str | None]:
        """What is locked and decided as one."""
        return (self.partition_id, self.group)


class Lanes:
    """Which requests may share one call, so that retry or dead letter is decided once per lane and request.

    Two requests about one lane share a call only if both do nothing but complete messages. A request that has to
    wait keeps later ones of its lanes waiting too, so order within a lane is kept.
    """

    def __init__(self) -> None:
        self._calm: set[tuple[str, str | None]] = set()  # messages are completed
        self._stormy: set[tuple[str, str | None]] = set()  # anything else happens, or something waits

    def admit(self, request: Sequence[Acknowledgement]) -> bool:
        lanes = {item.lane for item in request}
        only_completes = all(item.status in COMPLETED for item in request)
        admitted = lanes.isdisjoint(self._stormy) and (only_completes or lanes.isdisjoint(self._calm))
        (self._calm if admitted and only_completes else self._stormy).update(lanes)
        return admitted
