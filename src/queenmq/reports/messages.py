"""Single messages: lists of them, and one with everything that is known about it.

Payloads are as they are stored, which may be encrypted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.reports import attempts
from queenmq.reports.attempts import Attempt
from queenmq.reports.reading import Query, Reader, Reports

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]
MOST_EXAMINED: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages, each if given."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    status: str | None = None
    headers: str | None = None  # those that a message must have, as JSON


class _Message(Struct, frozen=True):
    id: UUID
    transaction_id: str
    partition_id: UUID
    queue: str
    partition: str
    namespace: str
    task: str
    priority: int
    trace_id: UUID | None
    producer_sub: str | None
    headers: str | None
    created_at: datetime
    is_encrypted: bool
    status: MessageStatus
    consumed_by: int
    named_groups: int
    lease_expires_at: datetime | None


class ListedMessage(_Message, frozen=True):
    """`payload` is None unless it was wanted; `omitted` if it was left out because those before it are large."""

    queue_status: MessageStatus
    payload: bytes | None
    omitted: bool


class Message(_Message, frozen=True):
    """A stored message, or what the dead letters have of one. `retry_count` is how often it has failed, for the group
    for which it failed most."""

    offset: int
    payload: bytes
    error_message: str | None
    retry_count: int
    queue_mode: bool
    lease_time_s: int
    retry_limit: int
    retry_delay_ms: int
    ttl_s: int | None


class MessageGroup(Struct, frozen=True):
    """How far a group of its partition has come with a message."""

    name: str
    consumed: bool
    status: MessageStatus
    attempts: int
    lease_expires_at: datetime | None


class Readers(Struct, frozen=True):
    """Whether queue mode, and how many named groups, read a queue, or any."""

    queue_mode: bool
    groups: int


class MessagePage(Struct, frozen=True):
    messages: list[ListedMessage]
    readers: Readers


class MessageDetail(Struct, frozen=True):
    message: Message
    groups: list[MessageGroup]
    attempts: list[Attempt]


_LISTED: Final = Query("messages_listed", ListedMessage)
_READERS: Final = Query("listing_mode", Readers)
_DESCRIBED: Final = Query("message_described", Message)
_GROUPS: Final = Query("message_groups", MessageGroup)


async def page(
    reports: Reports, which: MessageFilter, limit: int, offset: int, *, with_payloads: bool, max_bytes: int
) -> MessagePage:
    """The newest messages that match, newest first, among the `MOST_EXAMINED` newest; payloads up to `max_bytes`."""

    async def read(reader: Reader) -> MessagePage:
        found = await _matching(reader, which, limit, offset, with_payloads=with_payloads, max_bytes=max_bytes)
        return MessagePage(found, await reader.one(_READERS, which.queue))

    return await (reports.snapshot(read) if which.headers is None else reports.search(read))


async def _matching(
    reader: Reader, which: MessageFilter, limit: int, offset: int, *, with_payloads: bool, max_bytes: int
) -> list[ListedMessage]:
    where = which.queue, which.partition, which.namespace, which.task, which.since, which.until
    found: list[ListedMessage] = []
    # Neighbours are mostly in the same state: with a status, more are examined only if these are not enough.
    sizes = (limit + offset, MOST_EXAMINED) if which.status else (limit + offset,)
    for examined in sizes if which.headers is None else (MOST_EXAMINED,):
        most = max(1, min(examined, MOST_EXAMINED))
        rows = await reader.rows(_LISTED, *where, most, with_payloads, max_bytes, which.headers)
        found = [row for row in rows if which.status in (None, row.status)][offset : offset + limit]
        if len(found) == limit or len(rows) < most:
            break
    return found


async def newest(reader: Reader, queue: str, limit: int) -> list[ListedMessage]:
    """The newest messages of a queue, newest first, without their payloads."""
    return await _matching(reader, MessageFilter(queue=queue), limit, 0, with_payloads=False, max_bytes=0)


async def detail(reports: Reports, partition_id: str, transaction_id: str, most_groups: int) -> MessageDetail | None:
    """None if there is no such message."""

    async def read(reader: Reader) -> MessageDetail | None:
        message = await reader.row(_DESCRIBED, partition_id, transaction_id)
        if message is None:
            return None
        groups = await reader.rows(_GROUPS, partition_id, message.offset, most_groups, transaction_id)
        return MessageDetail(message, groups, await attempts.of_message(reader, partition_id, message.offset))

    return await reports.snapshot(read)
