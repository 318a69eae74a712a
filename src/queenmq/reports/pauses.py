"""What is paused."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import Verdict, time_text
from queenmq.reports.reading import Query, Reader


class PauseRead(Struct, frozen=True):
    """Without a group, of all groups; without a partition, of all partitions. `probe_at` is when the breaker that has
    paused a group lets the next batch through."""

    consumer_group: str | None
    partition: str | None
    paused_at: datetime
    paused_by: str | None
    reason: str | None
    probe_at: datetime | None

    def verdict(self) -> Verdict:
        if self.partition is not None:
            what = f"Partition {self.partition!r} is paused for group {self.consumer_group!r}"
        elif self.consumer_group is not None:
            what = f"Group {self.consumer_group!r} is paused in this queue"
        else:
            what = "The queue is paused for all groups"
        because = f": {self.reason}" if self.reason else "."
        return Verdict(
            "paused",
            f"{what} by {self.paused_by or 'somebody without a token'} since {time_text(self.paused_at)}{because}",
            "Resume it: POST /api/v1/resume, or `queen queues resume`. Leases that are out can be acknowledged."
            if self.probe_at is None
            else f"Find out why messages fail. A batch is let through at {time_text(self.probe_at)}; the pause ends if "
            "it is completed. Or resume it now: POST /api/v1/resume, or `queen queues resume`.",
            self.probe_at,
        )


class ListedPause(PauseRead, frozen=True):
    queue: str


class QueuePauses(Struct, frozen=True):
    name: str
    pauses: int


_LISTED: Final = Query("pauses_listed", ListedPause)
_EXPLAINED: Final = Query("explain_pauses", PauseRead)
_BY_QUEUE: Final = Query("pauses_by_queue", QueuePauses)


async def page(reader: Reader, queue: str | None, visible: list[str] | None, limit: int) -> list[ListedPause]:
    return await reader.rows(_LISTED, queue, visible, limit)


async def of_group(reader: Reader, queue_id: UUID, group: str) -> list[PauseRead]:
    """What keeps the group from a queue, the widest first."""
    return await reader.rows(_EXPLAINED, queue_id, group)


async def by_queue(reader: Reader, most: int) -> list[QueuePauses]:
    return await reader.rows(_BY_QUEUE, most)
