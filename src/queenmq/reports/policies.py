"""What queues and groups do with messages that fail, their limits, and the messages that wait for that."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader


class ListedPolicy(Struct, frozen=True):
    """Without a group, of all groups that have none of their own. The parts are JSON, as they were given."""

    queue: str
    consumer_group: str | None
    changed_at: datetime
    changed_by: str | None
    retry: str | None
    breaker: str | None
    limits: str | None
    fairness: str | None


class SkippedMessage(Struct, frozen=True):
    """A message that failed and is kept back, alone or (`parks`) with all that follow it, until it is settled."""

    partition: str
    partition_id: UUID
    consumer_group: str
    offset: int
    transaction_id: str
    created_at: datetime
    until: datetime
    parks: bool
    attempts: int


_LISTED: Final = Query("policies_listed", ListedPolicy)
_SKIPPED: Final = Query("skipped_listed", SkippedMessage)


async def page(reader: Reader, queue: str | None, visible: list[str] | None, limit: int) -> list[ListedPolicy]:
    return await reader.rows(_LISTED, queue, visible, limit)


async def skipped(reader: Reader, queue: str, group: str | None, limit: int) -> list[SkippedMessage]:
    return await reader.rows(_SKIPPED, queue, group, limit)
