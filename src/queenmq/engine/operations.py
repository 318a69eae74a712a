"""The operation queue: running what was queued, and what can be asked and done about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import asyncpg
import msgspec

from queenmq.core.message import Message
from queenmq.engine.push import Outcome, PushCall
from queenmq.engine.wake_ups import Wake, by_queue
from queenmq.errors import InternalError
from queenmq.ids import uuid7_text
from queenmq.overload.push_buffer import Held
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_encode = msgspec.json.Encoder().encode
_MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OperationFilter:
    status: str | None
    queue: str | None
    kind: str | None
    limit: int
    offset: int


class Operations:
    def __init__(self, database: Database, worker: str, pushed: Wake) -> None:
        self._database = database
        self._worker = worker
        self._pushed = pushed
        self.finished = Counter({"completed": 0, "failed": 0})

    # Running

    async def release(self) -> None:
        """Give back what this worker had claimed when it was interrupted."""
        await self._database.fetch(statement("release_operations"), self._worker)

    async def run(self, partitions: int, length: int) -> int:
        """Run the oldest operations of up to so many partitions, in order. Returns how many were claimed.

        They run in one transaction. If that fails for their content, each runs alone, and only the guilty fail.
        """
        claim = uuid7_text()
        rows = await self._database.fetch(
            statement("claim_operations"), self._worker, claim, partitions, length, _MOST_BYTES
        )
        if not rows:
            return 0
        try:
            await self._run(claim, rows)
        except InternalError:
            for row in rows:
                await self._run_alone(claim, row)
        return len(rows)

    async def _run_alone(self, claim: str, row: asyncpg.Record) -> None:
        try:
            await self._run(claim, [row])
        except InternalError as error:
            text = str(error.__cause__ or error)
            await self._database.fetch(statement("fail_operation"), row["id"], claim, text)
            self.finished["failed"] += 1

    async def _run(self, claim: str, rows: list[asyncpg.Record]) -> None:
        async with self._database.connection() as connection, connection.transaction():
            ours = set(await connection.fetchval(statement("hold_operations"), claim, [row["id"] for row in rows]))
            held = [row for row in rows if row["id"] in ours]
            if not held:
                return
            call, outcomes = await _push(connection, held)
            dealt = iter(outcomes)
            results = [_result(list(islice(dealt, len(row["message_ids"]))), row["transaction_ids"]) for row in held]
            await connection.execute(statement("complete_operations"), [row["id"] for row in held], results)
        self.finished["completed"] += len(held)
        for queue, names in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._pushed(queue, names)

    async def replayed(self, pushes: Sequence[tuple[Held, list[Message], list[Outcome]]]) -> None:
        """Keep the results of journalled pushes, for whoever asks for them."""
        await self._database.fetch(
            statement("record_replayed"),
            [held.operation_id for held, _, _ in pushes],
            [held.partitions[0][0] for held, _, _ in pushes],
            [held.partitions[0][1] for held, _, _ in pushes],
            [_result(outcomes, [m.transaction_id for m in messages]) for _, messages, outcomes in pushes],
        )

    async def forget(self, keep_s: int, keep_failed_s: int, most: int) -> int:
        """Remove finished operations whose time is over; returns how many."""
        return len(await self._database.fetch(statement("forget_operations"), keep_s, keep_failed_s, most))

    # Asking

    async def find(self, operation_id: str) -> asyncpg.Record | None:
        return await self._database.fetchrow(statement("operation"), operation_id)

    async def page(self, which: OperationFilter) -> list[asyncpg.Record]:
        """Newest first."""
        narrowed = (which.status, which.queue, which.kind)
        return await self._database.fetch(statement("operations"), *narrowed, which.limit, which.offset)

    async def statistics(self) -> list[asyncpg.Record]:
        return await self._database.fetch(statement("operation_stats"))

    async def retry(self, operation_id: str) -> bool:
        """Do a failed one again, behind what came after it. Administration, also if cancelled, goes on where it was.

        False if there is nothing to be done again.
        """
        for kind in ("retry_operation", "retry_administration"):
            if await self._database.fetchval(statement(kind), operation_id) is not None:
                return True
        return False

    async def cancel(self, operation_id: str) -> asyncpg.Record | None:
        """Never do one that waits or has failed, and stop administration behind its step. None if it is none of these.

        `error` of administration says what has been done.
        """
        return await self._database.fetchrow(statement("cancel_operation"), operation_id)


async def _push(
    connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], rows: list[asyncpg.Record]
) -> tuple[PushCall, list[Outcome]]:
    messages = [message for row in rows for message in _messages(row)]
    encrypted = [flag for row in rows for flag in row["encrypted"]]
    call = PushCall.merge(messages)
    sealed = [(messages[position].payload, encrypted[position]) for position in call.order]
    answer = await connection.fetchrow(statement("push_now"), *call.arguments_sealed(sealed))
    if answer is None:
        raise AssertionError("queen.push returned no row")
    return call, call.outcomes_of(answer)


def _messages(row: asyncpg.Record) -> list[Message]:
    fields = zip(
        row["payloads"], row["message_ids"], row["transaction_ids"], row["trace_ids"], row["producers"], strict=True
    )
    return [
        Message(
            row["queue_name"], row["partition_name"], payload, str(id_), transaction, trace and str(trace), producer
        )
        for payload, id_, transaction, trace, producer in fields
    ]


def _result(outcomes: list[Outcome], transaction_ids: Sequence[str]) -> str:
    """One result per message, with the ids in both spellings that published clients read."""
    results: list[dict[str, Any]] = []
    for index, (outcome, transaction_id) in enumerate(zip(outcomes, transaction_ids, strict=True)):
        result = {
            "index": index,
            "status": outcome.status,
            "transaction_id": transaction_id,
            "transactionId": transaction_id,
            "message_id": outcome.message_id,
            "messageId": outcome.message_id,
        }
        if outcome.deferral is not None:
            result["operationId"] = outcome.deferral.operation_id
        if outcome.status == "failed":
            result["error"] = "the queue is full: the message would exceed max capacity (maxSize)"
        results.append(result)
    return _encode(results).decode()
