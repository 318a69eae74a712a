"""Reading by offset or by time, without a group: `Queue.read`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from queenmq.client.errors import InvalidUse, ReadFailed
from queenmq.client.models import Json, StoredMessage
from queenmq.client.options import timestamp
from queenmq.client.verbs import Verbs


class Read(Struct, kw_only=True):
    """Messages of a partition, by offset. `next_offset` is where to go on, and `last_offset` that of the last message
    that was pushed, 0 if none ever was. `first_offset` is the first that is not deleted for certain."""

    messages: list[StoredMessage]
    next_offset: int
    first_offset: int
    last_offset: int

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class _Entry(Struct, kw_only=True, rename="camel"):
    error: str | None = None
    message: str | None = None
    records: list[StoredMessage]
    high_watermark: int
    log_start_offset: int
    next_offset: int


class _Answer(Struct):
    entries: list[_Entry]


_answer = msgspec.json.Decoder(_Answer)


def where_from(offset: int | None, since: datetime | None) -> Json:
    """Raises InvalidUse if both are given, or the moment has no time zone."""
    if since is None:
        return {"offset": offset or 0}
    if offset is not None:
        raise InvalidUse("read from an offset or since a moment, not both")
    return {"since": timestamp(since, "since")}


async def read_partition(verbs: Verbs, entry: Json) -> Read:
    """Raises ReadFailed if messages from there on are deleted or were never pushed, or cannot be decrypted."""
    [found] = (await verbs.fetch([entry], _answer)).entries
    if found.error not in (None, "UNKNOWN_TOPIC_OR_PARTITION"):
        reason = found.message or (
            f"the partition has offsets {found.log_start_offset} to {found.high_watermark - 1}, not {entry['offset']}"
        )
        raise ReadFailed(reason, found.error)
    return Read(
        messages=found.records,
        next_offset=found.next_offset,
        first_offset=found.log_start_offset,
        last_offset=max(0, found.high_watermark - 1),
    )
