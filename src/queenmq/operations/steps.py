"""Stepped operations: delete queue, clear, seek, redrive and retention, done in short transactions.

What one step finishes is done in the request and leaves no operation. The rest is an operation in PostgreSQL: each step
and the progress that it records are one transaction, so that after a crash this or another server goes on behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec

from queenmq.config import OperationSettings
from queenmq.errors import DatabaseUnavailable, HttpError, Overloaded, RequestError
from queenmq.ids import uuid7_text
from queenmq.storage.database import Database
from queenmq.storage.sqlstates import described, is_about_the_statement
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Claimed:
    """An operation that this server runs. Pass it to `end` when it does not any more."""

    operation_id: str
    claim: str


StepKind = Literal["clear", "seek", "redrive", "redrive_matching"]


class StepParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a stepped operation is about, each if given. It is stored with the operation."""

    partition: str | None = None
    group: str | None = None
    at: datetime | None = None
    error: str | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """What a first step did, and the operation for the rest, if there is one; `claimed` if this server is to run it."""

    done: int
    operation_id: str | None = None
    claimed: Claimed | None = None


@dataclass(frozen=True, slots=True)
class DeletedQueue:
    existed: bool
    version: int
    begun: Begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that was committed."""

    kind: str
    queue: str | None
    done: int
    finished: bool
    retained_in: str = ""  # the queue of which retention has deleted messages
    retained: int = 0
    dropped: Sequence[tuple[str, str]] = ()  # partitions that retention has removed: (queue, partition)


class SteppedOperations:
    def __init__(self, database: Database, server_id: str, settings: OperationSettings) -> None:
        self._database = database
        self._server_id = server_id
        self._settings = settings
        self._claiming: set[str] = set()  # claims of statements that have not answered yet
        self._running: set[str] = set()  # claims of operations that this server runs
        self._releasing = asyncio.Lock()
        self.interrupted = True  # an earlier process with this id may have left claims
        self.steps = 0
        self.completed = 0
        self.failed = 0

    # Beginning

    async def begin(self, kind: StepKind, queue: str, parameters: StepParameters, *, claim: bool) -> Begun | None:
        """Take the first step, and with `claim`, claim the rest. None if there is no such queue."""
        await self._release_interrupted()
        with self._new_claim() as new:
            row = await self._database.fetchrow(
                statement("begin_operation"),
                kind,
                queue,
                _encode(parameters).decode(),
                self._server_id,
                new if claim else None,
                self._settings.step,
                self._settings.max_unfinished,
            )
            if row is None:
                raise AssertionError("queen.begin_operation returned no row")
            if not row["known"]:
                return None
            if row["id"] is None:
                return Begun(row["done"])
            return self._begun(row, new if claim and row["running"] else None)

    async def delete_queue(self, queue: str, *, claim: bool) -> DeletedQueue:
        """Delete a queue. After it the name is free, and nothing of the queue is reachable."""
        await self._release_interrupted()
        with self._new_claim() as new:
            row = await self._database.fetchrow(
                statement("delete_queue"),
                queue,
                self._server_id,
                new if claim else None,
                self._settings.step,
            )
            if row is None:
                raise AssertionError("queen.delete_queue returned no row")
            if row["id"] is None:
                return DeletedQueue(row["existed"], row["version"], Begun(row["total"] or 0))
            return DeletedQueue(True, row["version"], self._begun(row, new if claim else None))

    def _begun(self, row: asyncpg.Record, claim: str | None) -> Begun:
        operation_id = str(row["id"])
        return Begun(0, operation_id, None if claim is None else self._keep(operation_id, claim))

    async def begin_retention(self, limit: int, idle_days: int) -> Claimed | None:
        """Begin a run of retention; None if one runs or waits already."""
        return await self._claim("begin_retention", _encode({"limit": limit, "idleDays": idle_days}).decode())

    async def adopt_remains(self) -> bool:
        """Make operations for what is left of deleted queues without one; returns whether there was something."""
        return bool(await self._database.fetch(statement("adopt_remains")))

    # Claims

    async def claim_next(self) -> Claimed | None:
        """Claim the oldest operation that waits, or that a dead server has left; None if there is none."""
        return await self._claim("claim_administration")

    async def _claim(self, name: str, *arguments: object) -> Claimed | None:
        await self._release_interrupted()
        with self._new_claim() as new:
            found = await self._database.fetchval(statement(name), *arguments, self._server_id, new)
            return None if found is None else self._keep(str(found), new)

    @contextlib.contextmanager
    def _new_claim(self) -> Iterator[str]:
        """A claim for one statement that may use it; `_keep` it if it did."""
        claim = uuid7_text()
        self._claiming.add(claim)
        try:
            yield claim
        finally:
            self._claiming.discard(claim)

    def _keep(self, operation_id: str, claim: str) -> Claimed:
        self._running.add(claim)
        return Claimed(operation_id, claim)

    def end(self, claimed: Claimed) -> None:
        """This server does not run it any more."""
        self._running.discard(claimed.claim)

    async def _release_interrupted(self) -> None:
        """Give back what was interrupted. Nothing is claimed meanwhile: it would be given back, too."""
        async with self._releasing:
            if self.interrupted:
                self.interrupted = False
                try:
                    await self.release()
                except BaseException:
                    self.interrupted = True
                    raise

    async def release(self) -> None:
        """Give back all operations of this server but those that it runs."""
        ours = list(self._claiming | self._running)
        await self._database.fetch(statement("release_administration"), self._server_id, ours)

    # Running

    async def step(self, claimed: Claimed) -> Step | None:
        """Take one step. None if it failed, or the operation was cancelled or another server has it."""
        try:
            row = await self._database.fetchrow(
                statement("step_operation"), claimed.operation_id, claimed.claim, self._settings.step
            )
        except HttpError as error:
            await self._failed(claimed, error)
            return None
        if row is None:
            return None
        self.steps += 1
        if row["finished"]:
            self.completed += 1
            log.info("operation %s (%s) is completed: %d", claimed.operation_id, row["kind"], row["done"])
        return _step(row)

    async def _failed(self, claimed: Claimed, error: HttpError) -> None:
        """It is tried again with growing pauses. Only what is refused on purpose (a full queue, say) ends it."""
        if isinstance(error, DatabaseUnavailable) and not is_about_the_statement(error):
            self.interrupted = True
            log.warning("operation %s was interrupted and will be resumed: %s", claimed.operation_id, error)
            return
        refused = isinstance(error, Overloaded | RequestError)
        try:
            failed = await self._database.fetchrow(
                statement("fail_operation"), claimed.operation_id, claimed.claim, described(error), refused
            )
        except HttpError:
            self.interrupted = True
            return
        if failed is None:
            return
        self.failed += failed["became"] == "failed"
        if failed["became"] == "failed" or failed["attempts"] == 1:
            log.warning(
                "a step of operation %s failed, it is %s: %s", claimed.operation_id, failed["became"], described(error)
            )


def _step(row: asyncpg.Record) -> Step:
    return Step(
        kind=row["kind"],
        queue=row["queue_name"],
        done=row["done"],
        finished=row["finished"],
        retained_in=row["retained_in"] or "",
        retained=row["retained"] or 0,
        dropped=list(zip(row["dropped_queues"] or (), row["dropped_partitions"] or (), strict=True)),
    )
