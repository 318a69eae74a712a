"""Why deliveries failed, and who consumes: the last attempts of messages, the holders of leases, who reads a queue.

Consumers are known by their leases, whose ids have a tag (`queen.consumer_of`). One that no server has noted, because
it is forgotten or its server is of an older version, is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.reports import queues
from queenmq.reports.reading import Query, Reader, Reports

Outcome = Literal["failed", "retry", "dlq", "expired"]
Head = tuple[UUID, str]
"""A partition and a group in it."""


class Consumer(Struct, frozen=True):
    """What a client says of itself, where it comes from and whose token it has."""

    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None


class _Attempt(Struct, frozen=True):
    consumer_group: str
    ended_at: datetime | None
    outcome: Outcome | None
    error: str | None
    leased_at: datetime | None
    known: bool | None
    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None

    @property
    def consumer(self) -> Consumer | None:
        if not self.known:
            return None
        return Consumer(self.name, self.host, self.process, self.address, self.subject)


class Attempt(Struct, frozen=True):
    """A delivery that failed: `error` is what the consumer said. `expired`: its lease ended without a word."""

    consumer_group: str
    ended_at: datetime
    outcome: Outcome
    error: str | None
    leased_at: datetime | None
    consumer: Consumer | None


class _HeadRow(_Attempt, frozen=True):
    partition_id: UUID
    held_since: datetime | None
    is_held: bool | None
    held_name: str | None
    held_host: str | None
    held_process: str | None
    held_address: str | None
    held_subject: str | None


class HeadAttempts(Struct, frozen=True):
    """Who holds the lease, since when, and how the message at the head failed last."""

    holder: Consumer | None
    held_since: datetime | None
    last: Attempt | None


class ListedConsumer(Struct, frozen=True):
    """A consumer of a group: since when it is known, when it popped last, and its leases, the oldest since `oldest`."""

    consumer_group: str
    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None
    since: datetime
    seen_at: datetime
    leases: int
    oldest: datetime | None
    partitions: list[str]


NOTHING: Final = HeadAttempts(None, None, None)
MOST_SHOWN: Final = 100
MOST_ERROR: Final = 2000  # characters that are stored of one
_LEAST_ERROR: Final = 100
_CHARACTER_BYTES: Final = 4
_OF_MESSAGE: Final = Query("message_attempts", _Attempt)
_OF_HEADS: Final = Query("head_attempts", _HeadRow)
_CONSUMERS: Final = Query("consumers_listed", ListedConsumer)


async def of_message(reader: Reader, partition_id: str, offset: int) -> list[Attempt]:
    """The last attempts of a message, newest first, of all groups."""
    rows = await reader.rows(_OF_MESSAGE, partition_id, offset, MOST_SHOWN)
    return [attempt for row in rows if (attempt := _attempt(row)) is not None]


async def of_heads(
    reader: Reader, places: Iterable[tuple[UUID, str, UUID | None, int | None]], max_bytes: int | None = None
) -> dict[Head, HeadAttempts]:
    """Of partitions, each with a group, its live lease and the offset of its head, if there are any. If there are many,
    errors are cut, so that all of them have up to `max_bytes`."""
    wanted = [place for place in places if place[2:] != (None, None)]
    if not wanted:
        return {}
    columns = [list(column) for column in zip(*wanted, strict=True)]
    most = MOST_ERROR
    if max_bytes is not None:
        most = min(most, max(_LEAST_ERROR, max_bytes // _CHARACTER_BYTES // len(wanted)))
    return {(row.partition_id, row.consumer_group): _head(row) for row in await reader.rows(_OF_HEADS, *columns, most)}


async def consumers(
    reports: Reports, queue: str, group: str | None, within_s: int, limit: int
) -> list[ListedConsumer] | None:
    """Who has popped from a queue within so many seconds; None if there is no such queue."""

    async def read(reader: Reader) -> list[ListedConsumer] | None:
        found = await queues.find(reader, queue)
        return None if found is None else await reader.rows(_CONSUMERS, found.id, group, within_s, limit)

    return await reports.snapshot(read)


def _attempt(row: _Attempt) -> Attempt | None:
    if row.ended_at is None or row.outcome is None:
        return None
    return Attempt(row.consumer_group, row.ended_at, row.outcome, row.error, row.leased_at, row.consumer)


def _head(row: _HeadRow) -> HeadAttempts:
    holder = None
    if row.is_held:
        holder = Consumer(row.held_name, row.held_host, row.held_process, row.held_address, row.held_subject)
    return HeadAttempts(holder, row.held_since, _attempt(row))
