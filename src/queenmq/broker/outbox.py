"""The outbox: messages that applications send with `queen.send` in their own transactions.

They are pushed and removed in one transaction. One server at a time does it, in the order in which the transactions
have committed. A partition whose messages cannot be pushed is held, with all that is sent to it later, and tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from queenmq.broker.accepted import LOCK_TIMEOUT, LOCK_TIMEOUT_APART, AcceptedPush, may_succeed_apart
from queenmq.clock import Clock
from queenmq.core.message import Message
from queenmq.core.outbox_floor import OutboxFloor
from queenmq.errors import HttpError
from queenmq.storage.sqlstates import described
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

# The channel of NOTIFY on which the database announces that something was sent (outbox_insert.sql).
SENT: Final = "queen_sent"
_MOST_AT_ONCE: Final = 1000
_MOST_BYTES: Final = 8 * 1024 * 1024
_TEND_EVERY_S: Final = 60.0
_FLOOR_FOR_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of the outbox, and its place there."""

    number: int  # of the commit
    sending: int
    position: int
    message: Message


class Outbox:
    def __init__(self, accepted: AcceptedPush, clock: Clock) -> None:
        self._database = accepted.database
        self._accepted = accepted
        self._clock = clock
        self._floor = OutboxFloor()
        self._floor_until = self._tend_at = 0.0
        self.pushed = 0
        self.failed = 0
        self.waiting = 0  # messages, counted once a minute
        self.held = 0  # partitions, as well
        self.late_s = 0.0  # how long the oldest message of the last batch had waited since it was sent

    async def push_next(self) -> int:
        """Push what was sent, up to a batch of it. Returns how many messages were pushed, are held now, or were found
        to wait behind the journal: the next batch leaves these out.

        If that fails, those of each partition are tried apart, and a partition for which it fails then is held.
        """
        await self._tend()
        if not self._accepted.is_allowed:
            return 0
        sent: list[Sent] = []
        try:
            async with self._database.connection() as connection, connection.transaction():
                behind = self._accepted.behind()
                rows = await connection.fetch(
                    statement("next_sends"), self._floor.number, _MOST_AT_ONCE, _MOST_BYTES, *behind
                )
                sent = self._read(rows)
                if not sent:
                    return len(rows)
                call = await self._accepted.store(connection, [one.message for one in sent], LOCK_TIMEOUT)
                transaction = await _remove(connection, sent)
                held = {(row["queue_name"], row["partition_name"]) for row in rows if row["was_held"]}
                if held:
                    await connection.execute(statement("release_partitions"), *zip(*held, strict=True))
        except HttpError as error:
            if not sent or not may_succeed_apart(error):
                raise
            await self._accepted.learn_from(error, [one.message for one in sent])
            for partition in _by_partition(sent):
                await self._push_apart(partition)
        else:
            if len(sent) == len(rows) and not behind[0] and not rows[0]["any_held"]:
                self._floor.moved(rows[-1]["number"], transaction, rows[0]["finished_below"])
            self.pushed += len(sent)
            self._accepted.announce(call)
        return len(rows)

    async def _tend(self) -> None:
        now = self._clock.monotonic()
        if now >= self._floor_until:
            # Only so that nothing stays hidden that nobody has foreseen.
            self._floor.reset()
            self._floor_until = now + _FLOOR_FOR_S
        if now >= self._tend_at:
            self._tend_at = now + _TEND_EVERY_S
            row = await self._database.fetchrow(statement("tend_outbox"))
            self.waiting, self.held = (0, 0) if row is None else (row["waiting"], row["held"])

    def _read(self, rows: list[asyncpg.Record]) -> list[Sent]:
        """Without those whose partition has older messages in the journal: these go first."""
        if rows:
            self.late_s = max(row["waited_s"] for row in rows)
        sent = [Sent(row["number"], row["sending"], row["position"], _message(row)) for row in rows]
        return [one for one in sent if not self._accepted.must_wait(one.message)]

    async def _push_apart(self, sent: list[Sent]) -> None:
        """The messages of one partition: all together or, if that fails, later."""
        queue, partition = sent[0].message.queue, sent[0].message.partition
        try:
            async with self._database.connection() as connection, connection.transaction():
                rows = await connection.fetch(statement("lock_sends"), *_places(sent))
                there = {(row["sending"], row["position"]) for row in rows}
                sent = [one for one in sent if (one.sending, one.position) in there]
                if not sent:
                    return  # another server is at it
                call = await self._accepted.store(connection, [one.message for one in sent], LOCK_TIMEOUT_APART)
                await _remove(connection, sent)
                await connection.execute(statement("release_partitions"), [queue], [partition])
        except HttpError as error:
            if not may_succeed_apart(error):
                raise
            self.failed += len(sent)
            await self._database.fetch(statement("hold_partition"), queue, partition, described(error))
            log.warning(
                "%d messages that were sent to queue %r, partition %r cannot be pushed; they are kept, and tried again "
                "with growing pauses: %s",
                *(len(sent), queue, partition, described(error)),
            )
        else:
            self.pushed += len(sent)
            self._accepted.announce(call)


def _message(row: asyncpg.Record) -> Message:
    trace = row["trace_id"]
    return Message(
        row["queue_name"],
        row["partition_name"],
        row["payload"],
        str(row["message_id"]),
        row["transaction_id"],
        trace_id=None if trace is None else str(trace),
        producer=row["producer_sub"],
        headers=row["headers"],
    )


async def _remove(connection: asyncpg.Connection[asyncpg.Record], sent: Sequence[Sent]) -> int:
    """Remove them, and the commits that have nothing left. Returns the transaction that does it."""
    transaction: int = await connection.fetchval(statement("remove_sends"), *_places(sent))
    await connection.execute(statement("remove_commits"), sorted({one.number for one in sent}))
    return transaction


def _places(sent: Sequence[Sent]) -> tuple[list[int], list[int]]:
    return [one.sending for one in sent], [one.position for one in sent]


def _by_partition(sent: list[Sent]) -> list[list[Sent]]:
    found: dict[tuple[str, str], list[Sent]] = {}
    for one in sent:
        found.setdefault((one.message.queue, one.message.partition), []).append(one)
    return list(found.values())
