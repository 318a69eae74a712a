"""The operation queue as a table: retry, cancel, and deleting what finished long ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queenmq.core.operations import OperationStatus, record_outcomes
from queenmq.core.push_call import Outcome
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

# Entries for one queue beyond which they are folded. A push does that by itself.
_MOST_SIZE_CHANGES = 1000


@dataclass(frozen=True, slots=True)
class Retried:
    """An operation that is done again: in its place, or behind what came after it in its partition."""

    in_place: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An operation that was given up. `done` is a sentence that says how far a stepped operation came; None of a push,
    which has changed nothing."""

    done: str | None


@dataclass(frozen=True, slots=True)
class ReplayedPush:
    """A push that was replayed from the journal, with the first of its partitions."""

    operation_id: str
    queue: str
    partition: str
    transaction_ids: Sequence[str]
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class FoundOperation:
    """How far an operation is, in `unit`; `error` says why it failed or how far it came before it was cancelled."""

    status: OperationStatus
    error: str | None
    done: int
    total: int | None
    unit: str


class OperationQueue:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, operation_id: str) -> FoundOperation | None:
        row = await self._database.fetchrow(statement("operation"), operation_id, repeatable=True)
        if row is None:
            return None
        return FoundOperation(row["status"], row["error"], row["done"], row["total"], row["unit"])

    async def retry(self, operation_id: str) -> Retried | None:
        """Run a failed operation again, or run one at once that is blocked or waits for its next attempt.

        A stepped operation, also a cancelled one, goes on behind its last step. None if it cannot be retried.
        """
        for kind in ("retry_operation", "retry_administration"):
            in_place = await self._database.fetchval(statement(kind), operation_id)
            if in_place is not None:
                return Retried(in_place)
        return None

    async def cancel(self, operation_id: str) -> Cancelled | None:
        """Give up an operation that waits or has failed, or stop a stepped one behind its current step.

        None if it cannot be cancelled.
        """
        row = await self._database.fetchrow(statement("cancel_operation"), operation_id)
        if row is None:
            return None
        return Cancelled(None if row["kind"] == "push" else row["error"])

    async def record_replayed(self, pushes: Sequence[ReplayedPush]) -> None:
        """Keep the results of pushes from the journal as completed operations."""
        await self._database.fetch(
            statement("record_replayed"),
            [push.operation_id for push in pushes],
            [push.queue for push in pushes],
            [push.partition for push in pushes],
            [record_outcomes(push.outcomes, push.transaction_ids) for push in pushes],
        )

    async def forget(self, keep_s: int, keep_failed_s: int, most: int) -> int:
        """Delete finished operations that are older than that; returns how many."""
        return len(await self._database.fetch(statement("forget_operations"), keep_s, keep_failed_s, most))

    async def fold_size_changes(self) -> None:
        """Bound what INSERTs into queues with maxSize leave for a push that never comes."""
        await self._database.fetch(statement("fold_size_changes"), _MOST_SIZE_CHANGES)
