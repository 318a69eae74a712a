"""Finding queues, groups, partitions and messages by what a person remembers of them.

Everything is bounded: what cannot be found in an index is searched among so many, and the answer says whether that
was all. `permitted` has patterns for the names of the queues that the caller may read, None if it is all of them. The
indexes are over the messages of all queues, so they are used only then: what others have must neither use up what is
examined nor show in the answer.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader, Reports

BY_TRANSACTION: Final = "messages_found_by_transaction"
BY_HEADERS: Final = "messages_found_by_headers"
MOST_EXAMINED: Final = 5000
_MOST_RECENT: Final = 50  # partitions, of each a hundred messages
# As the index partitions_words splits names.
_WORD: Final = re.compile("[a-z]+|[0-9]+")


class FoundQueue(Struct, frozen=True):
    name: str
    namespace: str


class FoundGroup(Struct, frozen=True):
    name: str
    queue: str


class FoundPartition(Struct, frozen=True):
    id: UUID
    name: str
    queue: str


class _Message(Struct, frozen=True):
    examined: int
    is_whole: bool
    queue: str | None
    partition: str | None
    partition_id: UUID | None
    transaction_id: str | None
    created_at: datetime | None


class FoundMessage(Struct, frozen=True):
    queue: str
    partition: str
    partition_id: UUID
    transaction_id: str
    created_at: datetime


class FoundMessages(Struct, frozen=True):
    """`is_complete` is False if there may be more that were not examined."""

    messages: list[FoundMessage]
    is_complete: bool


class Found(Struct, frozen=True):
    queues: list[FoundQueue]
    groups: list[FoundGroup]
    partitions: list[FoundPartition]
    by_transaction: FoundMessages
    by_header: FoundMessages


class _Index(Struct, frozen=True):
    name: str


_QUEUES: Final = Query("find_queues", FoundQueue)
_GROUPS: Final = Query("find_groups", FoundGroup)
_PARTITIONS: Final = Query("find_partitions", FoundPartition)
_MESSAGES: Final = Query("find_messages", _Message)
_MESSAGES_INDEXED: Final = Query("find_messages_indexed", _Message)
_HEADERS: Final = Query("find_by_headers", _Message)
_HEADERS_RECENT: Final = Query("find_by_headers_recent", _Message)
_HEADERS_INDEXED: Final = Query("find_by_headers_indexed", _Message)
_INDEXES: Final = Query("finding_indexes", _Index)
_NONE: Final = FoundMessages([], True)


async def find(reports: Reports, text: str, headers: str | None, limit: int, permitted: list[str] | None) -> Found:
    """What has `text` in its name, and messages whose transactionId begins with it, or that have the headers, as JSON.
    `queue/partition` finds partitions of queues."""

    async def read(reader: Reader) -> Found:
        queue, slash, partition = text.partition("/")
        wanted = lowered(text)
        indexes = {index.name for index in await reader.rows(_INDEXES)} if permitted is None else set()
        partitions = await reader.rows(_PARTITIONS, wanted, limit, permitted, None, words(wanted))
        if slash and partition and len(partitions) < limit:
            part = lowered(partition.strip())
            inside = await reader.rows(
                _PARTITIONS, part, limit - len(partitions), permitted, lowered(queue.strip()), words(part)
            )
            partitions += [one for one in inside if one not in partitions]
        return Found(
            await reader.rows(_QUEUES, wanted, limit, permitted),
            await reader.rows(_GROUPS, wanted, limit, permitted),
            partitions,
            await _messages(
                reader, _MESSAGES_INDEXED if BY_TRANSACTION in indexes else _MESSAGES, text, limit, permitted
            ),
            _NONE
            if headers is None
            else await _by_headers(reader, headers, limit, permitted, is_indexed=BY_HEADERS in indexes),
        )

    return await reports.search(read)


async def _by_headers(
    reader: Reader, headers: str, limit: int, permitted: list[str] | None, *, is_indexed: bool
) -> FoundMessages:
    """What was written last comes first: the index has no order, and of a header that many messages have it would give
    whichever it reads first, after it has read that they all have it."""
    if not is_indexed:
        return await _messages(reader, _HEADERS, headers, limit, permitted)
    recent = await _messages(reader, _HEADERS_RECENT, headers, limit, permitted, _MOST_RECENT)
    if len(recent.messages) == limit:
        return recent
    return await _messages(reader, _HEADERS_INDEXED, headers, limit, permitted)


async def _messages(
    reader: Reader,
    query: Query[_Message],
    wanted: str,
    limit: int,
    permitted: list[str] | None,
    most: int | None = None,
) -> FoundMessages:
    rows = await reader.rows(query, wanted, limit, permitted, MOST_EXAMINED if most is None else most)
    found = [
        FoundMessage(row.queue, row.partition, row.partition_id, row.transaction_id, row.created_at)
        for row in rows
        if row.queue is not None
        and row.partition is not None
        and row.partition_id is not None
        and row.transaction_id is not None
        and row.created_at is not None
    ]
    is_complete = len(found) < limit and rows[0].examined < MOST_EXAMINED and rows[0].is_whole
    return FoundMessages(found, is_complete)


def lowered(text: str) -> str:
    """As PostgreSQL does it with names, whose collation is "C"."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def words(text: str) -> str | None:
    """What a name must have in the index partitions_words if it contains `text`, which may begin within a word and end
    within one: of the last word the beginning, and those between. None if that says nothing."""
    found = _WORD.findall(text)
    if not found:
        return None
    inner = [] if len(found) < 2 else found[1:-1]
    ends_whole = bool(re.search("[^a-z0-9]$", text))
    first_is_whole = bool(re.match("[^a-z0-9]", text))
    if len(found) == 1:
        return f"'{found[0]}'" if ends_whole and first_is_whole else f"'{found[0]}':*"
    whole = [*([found[0]] if first_is_whole else []), *inner, *([found[-1]] if ends_whole else [])]
    asked = [f"'{word}'" for word in whole] + ([] if ends_whole else [f"'{found[-1]}':*"])
    return " & ".join(asked) or None
