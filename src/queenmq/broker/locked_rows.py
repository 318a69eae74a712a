"""The rows that requests lock: what they are called, which of them are locked now, and who holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.failures import RowLocked
from queenmq.storage.slices import described_holder
from queenmq.storage.statements import statement

# By kind and name: ("head", queue, partition), ("position", partition id, group), ("lease", id), ("queue", name).
Row = tuple[str, ...]

_HOLDER_LIMIT_S: Final = 2.0


def head(queue: str, partition: str) -> Row:
    """What a push to a partition locks."""
    return ("head", queue, partition)


def position(partition_id: str, group: str) -> Row:
    return ("position", partition_id, group)


def lease(lease_id: str) -> Row:
    return ("lease", lease_id)


def queue_itself(queue: str) -> Row:
    return ("queue", queue)


def described(row: Row) -> str:
    match row:
        case ("head", queue, partition):
            return f"partition {partition!r} of queue {queue!r}"
        case ("position", partition_id, group):
            return f"the position of consumer group {group!r} in partition {partition_id}"
        case ("lease", lease_id):
            return f"the rows of lease {lease_id}"
        case ("queue", queue):
            return f"queue {queue!r}"
    return "a row that the request needs"


def refusal_for(row: Row, waited_s: float, holder: str) -> str:
    return (
        f"database connection busy: waited {waited_s:g} s for {described(row)}, held by {holder}. "
        "Try again with the same transactionIds when that transaction has ended (ECONNREFUSED)"
    )


async def find_locked(database: Database, rows: Collection[Row], *, tables: bool = False) -> dict[Row, str] | None:
    """The locked ones of these rows, with marks of who holds them. None: a whole table is locked."""
    kinds: dict[str, list[Row]] = {"head": [], "position": [], "lease": [], "queue": []}
    for row in rows:
        if row[0] in kinds:
            kinds[row[0]].append(row)
    heads, positions = kinds["head"], kinds["position"]
    try:
        answer = await database.fetchrow(
            statement("find_locked"),
            [row[1] for row in heads],
            [row[2] for row in heads],
            [row[1] for row in positions],
            [row[2] for row in positions],
            [row[1] for row in kinds["lease"]],
            [row[1] for row in kinds["queue"]],
            tables,
        )
    except RowLocked:
        return None
    if answer is None:
        raise AssertionError("queen.find_locked returned no row")
    if answer["is_table"]:
        return None
    return {
        of_kind[index - 1]: mark
        for kind, of_kind in kinds.items()
        for index, mark in zip(answer[f"{kind}s"] or (), answer[f"{kind}_marks"] or (), strict=True)
    }


async def holder_of(database: Database, row: Row) -> str:
    """For people: which transaction holds the row."""
    try:
        async with asyncio.timeout(_HOLDER_LIMIT_S):
            answer = await database.fetchrow(statement("lock_holder"), row[0], list(row[1:]))
    except (QueenError, TimeoutError):
        answer = None
    if answer is None or (answer["pid"] is None and answer["prepared"] is None):
        return "another transaction"
    return described_holder(answer)
