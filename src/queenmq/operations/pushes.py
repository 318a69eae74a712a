"""Deferred pushes: claiming the oldest of each partition, storing them in order, and what happens if that fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice

import asyncpg

from queenmq.core.message import Message
from queenmq.core.operations import record_outcomes
from queenmq.core.push_call import Outcome, PushCall
from queenmq.errors import HttpError, InternalError
from queenmq.ids import uuid7_text
from queenmq.storage.database import Database
from queenmq.storage.sqlstates import described, is_about_the_statement, is_content_fault
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_MOST_BYTES = 8 * 1024 * 1024
# How long a batch waits for a partition that another transaction has locked, and then each partition alone.
_LOCK_MS = 500
_LOCK_APART_MS = 50
# One of so many claims begins at another priority, at each of them in turn: what was accepted is stored, also if more
# of a higher priority always waits.
_IN_TURN = 10
_PRIORITIES = 9


@dataclass(frozen=True, slots=True)
class ClaimedPushes:
    claim: str
    rows: list[asyncpg.Record]


class DeferredPushes:
    """`interrupted` says that this server may still hold claims on pushes that it does not run any more."""

    def __init__(self, database: Database, server_id: str) -> None:
        self._database = database
        self._server_id = server_id
        self.interrupted = True  # an earlier process with this id may have left claims
        self._claims = 0
        self.finished = Counter({"completed": 0, "failed": 0})

    async def release(self) -> None:
        """Give back what this server had claimed when it was interrupted."""
        await self._database.fetch(statement("release_operations"), self._server_id)
        self.interrupted = False

    async def claim(self, partitions: int, length: int) -> ClaimedPushes | None:
        """Claim the oldest pushes of up to so many partitions, up to `length` of each. None if none waits."""
        claim = uuid7_text()
        self._claims += 1
        turn, rest = divmod(self._claims, _IN_TURN)
        for priority in (1,) if rest else (2 + turn % (_PRIORITIES - 1), 1):
            rows = await self._database.fetch(
                statement("claim_operations"), self._server_id, claim, partitions, length, _MOST_BYTES, priority
            )
            if rows:
                return ClaimedPushes(claim, rows)
        return None

    async def run(self, claimed: ClaimedPushes) -> AsyncIterator[list[tuple[str, str]]]:
        """Store claimed pushes. Yields after each commit the (queue, partition) pairs that became readable.

        They run in one transaction. If that fails, each partition runs alone, and of a partition each push, up to the
        first that fails: it waits for its next attempt, and those behind it in its partition wait with it.
        """
        try:
            stored = await self._store(claimed.claim, claimed.rows, _LOCK_MS)
        except HttpError as error:
            if not _is_about_the_run(error):
                raise
        else:
            yield stored
            return
        partitions: dict[object, list[asyncpg.Record]] = {}
        for row in claimed.rows:
            partitions.setdefault(row["partition_id"], []).append(row)
        for rows in partitions.values():
            async for stored in self._run_apart(claimed.claim, rows, whole=len(partitions) > 1):
                yield stored
        await self._database.fetch(statement("give_back_operations"), claimed.claim)

    async def _run_apart(
        self, claim: str, of_partition: list[asyncpg.Record], whole: bool
    ) -> AsyncIterator[list[tuple[str, str]]]:
        """Store the pushes of one partition; with `whole`, in one transaction first."""
        attempts = [[row] for row in of_partition]
        if whole and len(of_partition) > 1:
            attempts.insert(0, of_partition)
        for rows in attempts:
            try:
                stored = await self._store(claim, rows, _LOCK_APART_MS)
            except HttpError as error:
                if not _is_about_the_run(error):
                    raise
                if len(rows) == 1:
                    await self._fail(claim, rows[0], error)
                    return
                continue
            yield stored
            if len(rows) == len(of_partition):
                return

    async def _fail(self, claim: str, row: asyncpg.Record, error: HttpError) -> None:
        """It is tried again later; if its content is certainly the cause, only some times."""
        self.finished["failed"] += 1
        text = described(error)
        failed = await self._database.fetchrow(
            statement("fail_operation"), row["id"], claim, text, is_content_fault(error)
        )
        if failed is None:
            return
        about = f"operation {row['id']}, a push to {row['queue_name']!r} partition {row['partition_name']!r}"
        if failed["became"] == "blocked":
            log.error(
                "%s failed because of its content and blocks its partition: %s; "
                "remove the cause and retry it, or cancel it",
                about,
                text,
            )
        elif failed["became"] == "failed":
            log.error("%s failed because of its content and is kept as failed: %s", about, text)
        else:
            # It may fail for hours: one line says so, and the operation itself has the latest error.
            level = logging.WARNING if failed["attempts"] == 1 else logging.DEBUG
            log.log(level, "%s failed and is tried again with growing pauses: %s", about, text)

    async def _store(self, claim: str, rows: list[asyncpg.Record], lock_ms: int) -> list[tuple[str, str]]:
        readable: list[tuple[str, str]] = []
        async with self._database.connection() as connection, connection.transaction():
            ids = [row["id"] for row in rows]
            ours = set(await connection.fetchval(statement("hold_operations"), claim, ids, lock_ms))
            held = [row for row in rows if row["id"] in ours]
            if held:
                call, outcomes = await push_claimed(connection, held)
                dealt = iter(outcomes)
                results = [
                    record_outcomes(list(islice(dealt, len(row["message_ids"]))), row["transaction_ids"])
                    for row in held
                ]
                await connection.execute(statement("complete_operations"), [row["id"] for row in held], results)
                readable = list(zip(call.queues, call.partitions, strict=True))
        self.finished["completed"] += len(held)
        if len(held) < len(rows):
            # Something older of their partition is not finished after all, or the claim has timed out.
            await self._database.fetch(statement("give_back_operations"), claim)
        return readable


def _is_about_the_run(error: HttpError) -> bool:
    """Whether other pushes may succeed meanwhile. True also for unknown errors: they must not hold up all others."""
    return isinstance(error, InternalError) or is_about_the_statement(error)


async def push_claimed(
    connection: asyncpg.Connection[asyncpg.Record], rows: list[asyncpg.Record]
) -> tuple[PushCall, list[Outcome]]:
    """Store the messages of claimed pushes in the transaction of `connection`."""
    messages = [message for row in rows for message in _messages(row)]
    encrypted = [flag for row in rows for flag in row["encrypted"]]
    call = PushCall.merge(messages)
    sealed = [(messages[position].payload, encrypted[position]) for position in call.order]
    answer = await connection.fetchrow(statement("push_now"), *call.arguments(sealed=sealed))
    if answer is None:
        raise AssertionError("queen.push returned no row")
    return call, call.outcomes_of(answer)


def _messages(row: asyncpg.Record) -> list[Message]:
    headers = row["headers"] or [None] * len(row["message_ids"])
    fields = zip(
        *(row["payloads"], row["message_ids"], row["transaction_ids"], row["trace_ids"], row["producers"], headers),
        strict=True,
    )
    return [
        Message(
            row["queue_name"],
            row["partition_name"],
            payload,
            str(id_),
            transaction,
            trace_id=trace and str(trace),
            producer=producer,
            headers=of_one,
        )
        for payload, id_, transaction, trace, producer, of_one in fields
    ]
