"""Dead letters: messages that a group has given up. Payloads are as they are stored, which may be encrypted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader, Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters, each if given; `since` and `until` are about when they failed, `error` is part of the error,
    in any case."""

    queue: str | None = None
    group: str | None = None
    partition: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    fingerprint: str | None = None


class DeadLetter(Struct, frozen=True):
    """`omitted`: the payload is left out, and the error cut, because those before it are large."""

    message_id: UUID
    transaction_id: str
    partition_id: UUID
    queue: str
    partition_name: str
    consumer_group: str
    error_message: str
    retry_count: int
    payload: bytes | None
    is_encrypted: bool
    omitted: bool
    producer_sub: str | None
    headers: str | None
    created_at: datetime
    failed_at: datetime


class DeadLetterPage(Struct, frozen=True):
    letters: list[DeadLetter]
    total: int
    queues: list[QueueLetters] | None = None  # only if they were asked for


class QueueLetters(Struct, frozen=True):
    name: str
    letters: int


class _Count(Struct, frozen=True):
    letters: int


_PAGE: Final = Query("dead_letters", DeadLetter)
_TOTAL: Final = Query("dead_letters_total", _Count)
_COUNT: Final = Query("dead_letters_count", _Count)
_OF_QUEUES: Final = Query("dead_letters_of_queues", QueueLetters)
_BY_QUEUE: Final = Query("dead_letters_by_queue", QueueLetters)


async def page(
    reports: Reports,
    which: DeadLetterFilter,
    limit: int,
    offset: int,
    *,
    max_bytes: int,
    most_queues: int = 0,
) -> DeadLetterPage:
    """Dead letters, newest failure first, with payloads up to `max_bytes`, and how many match in all; with
    `most_queues`, also in which queues."""
    narrowing = which.since, which.until, which.partition, which.error, which.fingerprint
    is_plain = not most_queues and narrowing == (None,) * 5
    narrowed = which.queue, which.group, which.partition, which.since, which.until

    async def read(reader: Reader) -> DeadLetterPage:
        letters = await reader.rows(_PAGE, *narrowed, limit, offset, max_bytes, which.error, which.fingerprint)
        if is_plain:
            count = await reader.one(_TOTAL, which.queue, which.group)
        else:
            count = await reader.one(_COUNT, *narrowed, which.error, which.fingerprint)
        queues = None
        if most_queues:
            queues = await reader.rows(_OF_QUEUES, *narrowed, which.error, which.fingerprint, most_queues)
        return DeadLetterPage(letters, count.letters, queues)

    return await (reports.snapshot(read) if is_plain else reports.search(read))


async def by_queue(reader: Reader, limit: int) -> list[QueueLetters]:
    """The queues with dead letters, the most first; from the statistics."""
    return await reader.rows(_BY_QUEUE, limit)
