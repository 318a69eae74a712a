"""What the limits of a queue and of a group allow just now."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import Verdict, time_text
from queenmq.reports.reading import Query, Reader


class LimitRead(Struct, frozen=True):
    """Without a group, of all groups together; with a `partition`, of its `key`. `ends_at` is when the first of the
    leases that are `used` ends, and `refilled_at` when the next message may be delivered, if none may be now."""

    consumer_group: str | None
    partition: str | None
    key: str | None
    leases: int | None
    used: int
    ends_at: datetime | None
    rate: float | None
    tokens: float | None
    refilled_at: datetime | None

    def verdict(self) -> Verdict | None:
        """None if it allows something now."""
        who = "The queue" if self.consumer_group is None else f"Group {self.consumer_group!r}"
        if self.key is not None:
            whose = "the queue" if self.consumer_group is None else f"group {self.consumer_group!r}"
            who = f"Key {self.key!r} of {whose}"
        if self.leases is not None and self.used >= self.leases and self.ends_at is not None:
            what = "1 lease" if self.leases == 1 else f"{self.leases} leases"
            return Verdict(
                "limited",
                f"{who} is limited by {what} at once, and all are open; next at {time_text(self.ends_at)}, when the "
                "first of them ends, or when one is finished.",
                "Wait for the consumers, or raise the limit: POST /api/v1/policies, or `queen policies set`.",
                self.ends_at,
            )
        if self.rate is not None and self.refilled_at is not None:
            return Verdict(
                "limited",
                f"{who} is limited by {self.rate:g} messages a second; next at {time_text(self.refilled_at)}.",
                "Wait, or raise the limit: POST /api/v1/policies, or `queen policies set`.",
                self.refilled_at,
            )
        return None


_EXPLAINED: Final = Query("explain_limits", LimitRead)


async def of_group(reader: Reader, queue_id: UUID, group: str, partitions: list[str]) -> list[LimitRead]:
    """Those that a pop of the group goes by, in these partitions."""
    return await reader.rows(_EXPLAINED, queue_id, group, partitions)
