"""The words of acknowledgement. No I/O.

What an acknowledgement does to a position is decided in one place, the SQL function `queen.ack`.
"""

from __future__ import annotations

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
