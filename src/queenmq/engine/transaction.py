"""Transaction: pushes and acknowledgements that are applied together or not at all.

Transactions are not merged: one that fails must not touch another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from queenmq.core.acknowledgement import COMPLETED, Acknowledgement
from queenmq.core.message import Message
from queenmq.engine.ack import columns
from queenmq.engine.activity import Activity
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.places import Places
from queenmq.engine.push import PushCall
from queenmq.engine.sidecar import Policy
from queenmq.engine.wake_ups import Freed, Wake, by_queue
from queenmq.errors import Overloaded
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import Database, EncryptionRequired, TransactionRefused, TryAgain
from queenmq.storage.statements import statement

_TRIES = 6
_FIRST_PAUSE_S = 0.005


@dataclass(slots=True)
class Transaction:
    messages: list[Message]
    acknowledgements: list[Acknowledgement]
    required_leases: list[str]


@dataclass(slots=True)
class Committed:
    partition_ids: list[str]  # one per message
    dead_lettered: list[bool]  # one per acknowledgement


class Transactor:
    def __init__(
        self,
        database: Database,
        encryption: PayloadEncryption,
        places: Places,
        maintenance: Maintenance,
        policy: Policy,
        activity: Activity,
        pushed: Wake,
        freed: Freed,
        buffer: PushBuffer | None = None,
        wait_behind_s: float = 0.0,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._places = places
        self._maintenance = maintenance
        self._activity = activity
        self._pushed = pushed
        self._freed = freed
        self._buffer = buffer
        self._wait_behind_s = wait_behind_s
        self._slots = asyncio.Semaphore(policy.max_concurrent)
        self._max_pending = policy.max_pending
        self._pending = 0

    async def commit(self, transaction: Transaction) -> Committed:
        """Apply all of it. Raises TransactionRefused with the reason if nothing was applied."""
        if transaction.messages:
            self._maintenance.require_pushes()
        if self._pending >= self._max_pending:
            raise Overloaded("too many transactions are waiting for the database")
        self._pending += 1
        try:
            if self._buffer is not None:
                await self._buffer.require_turn(transaction.messages, self._wait_behind_s)
            async with self._slots:
                return await self._commit(transaction)
        finally:
            self._pending -= 1

    async def committed_before(self, transaction: Transaction) -> Committed | None:
        """What an earlier try of the same transaction, with the same ids, has done; None if there is no trace of one.

        For a refusal that may only mean that another server has committed it, and its answer was lost.
        """
        messages = transaction.messages
        if not messages:
            return None
        rows = await self._database.fetch(
            statement("stored_messages"),
            [message.queue for message in messages],
            [message.partition for message in messages],
            [message.transaction_id for message in messages],
        )
        if any(str(row["id"]) != message.id for row, message in zip(rows, messages, strict=True)):
            return None
        return Committed(
            partition_ids=[str(row["partition_id"]) for row in rows],
            dead_lettered=[ack.status not in COMPLETED for ack in transaction.acknowledgements],
        )

    async def _commit(self, transaction: Transaction) -> Committed:
        call = PushCall.merge(transaction.messages)
        if call.repeats:
            repeated = transaction.messages[min(call.repeats)].transaction_id
            raise TransactionRefused(
                "duplicate key value violates unique constraint: "
                f"transactionId {repeated!r} is pushed twice to one partition"
            )
        try:
            return await self._try(call, transaction)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._places.demand_encryption(refusal.detail)
            return await self._try(call, transaction)

    async def _try(self, call: PushCall, transaction: Transaction) -> Committed:
        pause = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return await self._run(call, transaction)
            except TryAgain:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._run(call, transaction)

    async def _run(self, call: PushCall, transaction: Transaction) -> Committed:
        known = await self._places.find(call.queues, call.partitions) if call.queues else None
        row = await self._database.fetchrow(
            statement("transact"),
            *call.arguments(self._encryption, known),
            *columns(transaction.acknowledgements),
            transaction.required_leases,
        )
        if row is None:
            raise AssertionError("queen.transact returned no row")
        self._places.learn(call.queues, call.partitions, known, row["partition_ids"] or ())
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._pushed(queue, partitions)
        if row["ack_queues"]:
            self._freed(set(zip(row["ack_queues"], row["ack_partitions"], row["ack_groups"], strict=True)))
        self._count(call, row["ack_queues"] or (), row["dead_lettered"] or ())
        targets = [str(partition_id) for partition_id in row["partition_ids"] or ()]
        return Committed(
            partition_ids=[targets[call.target[place] - 1] for place in call.place],
            dead_lettered=list(row["dead_lettered"] or ()),
        )

    def _count(self, call: PushCall, acked: Sequence[str], dead_lettered: Sequence[bool]) -> None:
        for queue in {*call.queues, *acked}:
            self._activity.of(queue).transactions += 1
        for target, messages in Counter(call.target).items():
            self._activity.pushed(call.queues[target - 1], 0, messages)
        self._activity.acked((queue, None, dead) for queue, dead in zip(acked, dead_lettered, strict=True))
