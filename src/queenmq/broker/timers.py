"""Timers: messages that are stored now and pushed at their moment, exactly once.

A timer that is due is pushed and removed, or moved to its next moment, in one transaction. One server at a time does
it, so that the timers of a partition are pushed in the order of their moments. One that cannot be pushed is tried again
later, and those behind it may come before it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec

from queenmq.broker.accepted import LOCK_TIMEOUT, LOCK_TIMEOUT_APART, AcceptedPush, may_succeed_apart
from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.queue_options import QueueOptions
from queenmq.broker.timer_floor import TimerFloor
from queenmq.clock import Clock
from queenmq.core.encryption import place_of_timer
from queenmq.core.message import Message
from queenmq.core.names import iso_millis
from queenmq.core.push_call import PushCall
from queenmq.core.schedule import check_schedule, next_moment
from queenmq.core.timer import TimerChange, TimerState
from queenmq.errors import HttpError, QueenError
from queenmq.ids import uuid7_text
from queenmq.storage.database import Database
from queenmq.storage.sqlstates import described
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 1000
_MOST_BYTES = 8 * 1024 * 1024
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Due:
    """A timer that is due, with its message as it was scheduled, and when it is due next if it is repeated."""

    key: str
    message: Message
    deliver_at: datetime
    next_at: datetime | None = None


@dataclass(slots=True)
class Batch:
    """Timers that were found due at `now`; those that cannot be pushed now, because they cannot be decrypted, have an
    unknown time zone, or exceed a quota, each with the reason; and how many wait behind the journal."""

    now: datetime = NEVER
    due: list[Due] = field(default_factory=list)
    unusable: list[tuple[Due, str]] = field(default_factory=list)
    behind: int = 0

    def partitions(self) -> list[Batch]:
        """Those of each partition."""
        found: dict[tuple[str, str], Batch] = {}
        for one in self.due:
            where = (one.message.queue, one.message.partition)
            found.setdefault(where, Batch(self.now)).due.append(one)
        return list(found.values())

    def put_off(self) -> list[tuple[list[Due], str]]:
        """The unusable ones of each partition that have the same reason."""
        found: dict[tuple[str, str, str], list[Due]] = {}
        for one, reason in self.unusable:
            found.setdefault((one.message.queue, one.message.partition, reason), []).append(one)
        return [(due, reason) for (_, _, reason), due in found.items()]


class Timers:
    def __init__(
        self, accepted: AcceptedPush, encryption: PayloadEncryption, options: QueueOptions, clock: Clock
    ) -> None:
        self._database = accepted.database
        self.floor = TimerFloor(accepted.database, clock)
        self._accepted = accepted
        self._encryption = encryption
        self._options = options
        self.pushed = 0
        self.failed = 0
        self.late_s = 0.0  # how late the last batch was
        self.on_repeated: Callable[[Counter[str]], None] = lambda pushed: None
        """Called with how many messages timers that repeat have pushed to which queues."""
        self.why_not_repeat: Callable[[Message], str | None] = lambda message: None
        """Why what a timer that repeats pushes may not be stored now; None if it may."""

    async def change(self, changes: Sequence[TimerChange]) -> list[TimerState]:
        """Apply them together; the states are in their order. Raises InvalidRequest for an unusable schedule."""
        return await self.apply(self._database, await self.prepare(changes))

    async def prepare(self, changes: Sequence[TimerChange]) -> tuple[object, ...]:
        """The arguments for `apply`. Raises InvalidRequest for an unusable schedule.

        It asks the database, so a caller with a transaction of its own prepares before it borrows a connection: who
        holds one and waits for another may wait for others that do the same.
        """
        if any(change.schedule is not None for change in changes):
            now: datetime = await self._database.fetchval(statement("database_time"), repeatable=True)
            changes = [_with_first_moment(change, now) for change in changes]
        await self._options.load_missing({change.queue for change in changes if change.message is not None})
        self._encryption.require_key_for(change.queue for change in changes if change.message is not None)
        messages = [_message_of(change) for change in changes]
        keys = [change.key for change in changes]
        sealed = self._encryption.seal(messages, keys) or [(message.payload, False) for message in messages]
        return (
            [change.change for change in changes],
            [change.queue for change in changes],
            keys,
            [message.partition for message in messages],
            [change.delay_ms for change in changes],
            [change.deliver_at for change in changes],
            [message.id for message in messages],
            [message.transaction_id for message in messages],
            [message.trace_id for message in messages],
            [message.producer for message in messages],
            [is_encrypted for _, is_encrypted in sealed],
            [payload for payload, _ in sealed],
            [change.schedule for change in changes],
            [change.time_zone for change in changes],
            [message.headers for message in messages],
        )

    @staticmethod
    async def apply(
        database: Database | asyncpg.Connection[asyncpg.Record], prepared: tuple[object, ...]
    ) -> list[TimerState]:
        rows = await database.fetch(statement("change_timers"), *prepared)
        return [
            TimerState(row["became"], row["transaction_id"], _text(row["message_id"]), row["deliver_at"])
            for row in rows
        ]

    async def push_due(self) -> int:
        """Push the timers that are due, up to a batch of them. Returns how many were pushed, put off, or found to
        wait behind the journal: the next batch leaves these out.

        If that fails, those of each partition are tried apart, and what fails then is tried again later.
        """
        if not self._accepted.is_allowed:
            return 0
        await self.floor.tend()
        batch = Batch()
        try:
            async with self._database.connection() as connection, connection.transaction():
                behind = self._accepted.behind()
                rows = await connection.fetch(statement("due_timers"), _MOST_AT_ONCE, _MOST_BYTES, *behind)
                if not rows:
                    return 0
                self.floor.found(len(rows), rows[-1]["next_attempt_at"])
                batch = self._read(rows)
                call = await self._push(connection, batch, LOCK_TIMEOUT)
        except HttpError as error:
            if not batch.due or not may_succeed_apart(error):
                raise
            await self._accepted.learn_from(error, [one.message for one in batch.due])
            for apart in batch.partitions():
                await self._push_apart(apart)
        else:
            self._after(call, batch)
        for unusable, reason in batch.put_off():
            await self._put_off(unusable, reason)
        return len(batch.due) + len(batch.unusable) + batch.behind

    async def _push_apart(self, batch: Batch) -> None:
        """The timers of one partition: all together or, if that fails, later."""
        due = batch.due
        try:
            async with self._database.connection() as connection, connection.transaction():
                rows = await connection.fetch(statement("lock_timers"), *_names(due))
                ours = {(row["queue_name"], row["key"]) for row in rows}
                batch = replace(batch, due=[one for one in due if (one.message.queue, one.key) in ours])
                call = await self._push(connection, batch, LOCK_TIMEOUT_APART)
        except HttpError as error:
            if not may_succeed_apart(error):
                raise
            await self._put_off(due, described(error))
        else:
            self._after(call, batch)

    async def _put_off(self, due: list[Due], reason: str) -> None:
        self.failed += len(due)
        await self._database.fetch(statement("postpone_timers"), *_names(due), reason)
        where = due[0].message
        log.warning(
            "%d timers of queue %r, partition %r cannot be pushed and are tried again with growing pauses: %s",
            len(due),
            where.queue,
            where.partition,
            reason,
        )

    async def _push(self, connection: asyncpg.Connection[asyncpg.Record], batch: Batch, lock_timeout: str) -> PushCall:
        """Store their messages and remove them, or move them to their next moment, in a transaction."""
        due = batch.due
        call = await self._accepted.store(connection, [one.message for one in due], lock_timeout)
        repeated = [(one, one.next_at) for one in due if one.next_at is not None]
        once = [one for one in due if one.next_at is None]
        if once:
            await connection.execute(
                statement("remove_timers"), [one.message.queue for one in once], [one.key for one in once]
            )
        if repeated:
            await connection.execute(
                statement("move_timers"),
                [one.message.queue for one, _ in repeated],
                [one.key for one, _ in repeated],
                [next_at for _, next_at in repeated],
                [uuid7_text() for _ in repeated],
                [_repetition(one.key, next_at) for one, next_at in repeated],
            )
        return call

    def _read(self, rows: list[asyncpg.Record]) -> Batch:
        """The timers of these rows, but for those whose partition has older messages in the journal: these go first."""
        batch = Batch(rows[0]["now"])
        for row in rows:
            one = Due(row["key"], _message(row), row["deliver_at"])
            if self._accepted.must_wait(one.message):
                batch.behind += 1
                continue
            try:
                if row["schedule"] is not None:
                    next_at = next_moment(row["schedule"], row["time_zone"], one.deliver_at, batch.now)
                    one = replace(one, next_at=next_at)
                    refusal = self.why_not_repeat(one.message)
                    if refusal is not None:
                        batch.unusable.append((one, refusal))
                        continue
                if row["is_encrypted"]:
                    place = place_of_timer(one.message.queue, one.message.partition, one.key)
                    one.message.payload = self._encryption.open(one.message.payload, place)
            except QueenError as error:
                batch.unusable.append((one, str(error)))
            else:
                batch.due.append(one)
        return batch

    def _after(self, call: PushCall, batch: Batch) -> None:
        if batch.due:
            self.late_s = max(0.0, (batch.now - min(one.deliver_at for one in batch.due)).total_seconds())
        self.pushed += len(batch.due)
        repeated = Counter(one.message.queue for one in batch.due if one.next_at is not None)
        if repeated:
            self.on_repeated(repeated)
        self._accepted.announce(call)


def _message(row: asyncpg.Record) -> Message:
    return Message(
        row["queue_name"],
        row["partition_name"],
        row["payload"],
        str(row["message_id"]),
        row["transaction_id"],
        trace_id=_text(row["trace_id"]),
        producer=row["producer_sub"],
        headers=row["headers"],
    )


def _names(due: list[Due]) -> tuple[list[str], list[str], list[UUID]]:
    """Queue, key and message of each: a timer that was replaced has another message."""
    return [one.message.queue for one in due], [one.key for one in due], [UUID(one.message.id) for one in due]


def _with_first_moment(change: TimerChange, now: datetime) -> TimerChange:
    if change.schedule is None or change.message is None:
        return change
    check_schedule(change.schedule, change.time_zone, now)
    first = change.deliver_at or next_moment(change.schedule, change.time_zone, now, now)
    message = msgspec.structs.replace(change.message, transaction_id=_repetition(change.key, first))
    return replace(change, deliver_at=first, message=message)


def _repetition(key: str, moment: datetime) -> str:
    """The transactionId of one message of a repeated timer: the same whichever server pushes it."""
    return f"{key}@{iso_millis(moment)}"


def _message_of(change: TimerChange) -> Message:
    """Of a cancellation, an empty one that takes its place in the arrays."""
    if change.message is not None:
        return change.message
    return Message(change.queue, "", b"", "00000000-0000-0000-0000-000000000000", "")


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
